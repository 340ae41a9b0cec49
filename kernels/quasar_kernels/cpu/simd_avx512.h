// AVX-512 with VNNI: one dpbusd multiplies 64 byte pairs and adds them in INT32 without an intermediate 16-bit sum. It wants unsigned
// activations, so rows are stored as q + 128 and each sum starts at −128 · Σ w, which the packed weights carry (kernels.h).
#pragma once

#include "transpose_x86.h"

constexpr int W = 16;
using F = __m512;
using I = __m512i;
using Q = __m512i;

static inline __mmask16 mask_n(int n) { return static_cast<__mmask16>((1u << n) - 1); }
static inline F load(const float* p) { return _mm512_loadu_ps(p); }
static inline F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(mask_n(n), p); }
static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
static inline void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, mask_n(n), x); }
static inline F set1(float x) { return _mm512_set1_ps(x); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
template <int S>
static inline F swap(F x) {
  if constexpr (S == 1) return _mm512_permute_ps(x, 0xb1);
  if constexpr (S == 2) return _mm512_permute_ps(x, 0x4e);
  if constexpr (S == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
  return _mm512_shuffle_f32x4(x, x, 0x4e);
}
static inline F where_less(F a, F b, F yes, F no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }
static inline F where_nan(F a, F yes, F no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), no, yes); }
static inline unsigned not_less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
static inline float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
static inline float reduce_max(F x) { return _mm512_reduce_max_ps(x); }

static inline I zero() { return _mm512_setzero_si512(); }
static inline I load_i(const void* p) { return _mm512_loadu_si512(p); }
static inline I round_i(F x) { return _mm512_cvtps_epi32(x); }
static inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
static inline I abs_bits(F x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
static inline I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
static inline int32_t reduce_max_i(I x) { return _mm512_reduce_max_epi32(x); }
static inline F pow2(I n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }
static inline void store_i8(int8_t* p, I x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }

constexpr bool kUnsignedActivations = true;
static inline I start_dot(const int32_t* minus_128_sums) { return load_i(minus_128_sums); }
static inline Q load_q(const int8_t* p) { return load_i(p); }
static inline I set1_dot(const uint8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
static inline I dot(I sum, Q w, I a) { return _mm512_dpbusd_epi32(sum, a, w); }

static inline F bf16_even(I pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
static inline F bf16_odd(I pair) {
  return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

static inline I xor_i(I a, I b) { return _mm512_xor_si512(a, b); }
static inline int32_t reduce_xor(I x) {
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, x);
  int32_t s = 0;
  for (int32_t lane : lanes) s ^= lane;
  return s;
}
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
