// AVX2 + FMA. The INT8 dot product needs |w| · sign(a, w) because maddubs multiplies unsigned by signed bytes; with |q| ≤ 127 the pair sums
// are at most 2 · 127², inside 16 bits, so nothing saturates. Four instructions per 32 products; madd_epi16 on widened bytes needs more.
#pragma once

#include "transpose_x86.h"

constexpr int W = 8;
using F = __m256;
using I = __m256i;
struct Q {
  __m256i w, magnitude;
};

static inline __m256i mask_n(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline F load(const float* p) { return _mm256_loadu_ps(p); }
static inline F load_n(const float* p, int n) { return _mm256_maskload_ps(p, mask_n(n)); }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
static inline void store_n(float* p, F x, int n) { _mm256_maskstore_ps(p, mask_n(n), x); }
static inline F set1(float x) { return _mm256_set1_ps(x); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
template <int S>
static inline F swap(F x) {
  if constexpr (S == 1) return _mm256_permute_ps(x, 0xb1);
  if constexpr (S == 2) return _mm256_permute_ps(x, 0x4e);
  return _mm256_permute2f128_ps(x, x, 0x01);
}
static inline F where_less(F a, F b, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
static inline F where_nan(F a, F yes, F no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
static inline unsigned not_less(F a, F b) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ))); }
static inline float reduce_add(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float reduce_max(F x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline I zero() { return _mm256_setzero_si256(); }
static inline I load_i(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline I round_i(F x) { return _mm256_cvtps_epi32(x); }
static inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
static inline I abs_bits(F x) { return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)); }
static inline I max_i(I a, I b) { return _mm256_max_epi32(a, b); }
static inline int32_t reduce_max_i(I x) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline F pow2(I n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
static inline void store_i8(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

constexpr bool kUnsignedActivations = false;
static inline I start_dot(const int32_t*) { return zero(); }
static inline Q load_q(const int8_t* p) {
  const __m256i w = load_i(p);
  return {w, _mm256_abs_epi8(w)};
}
static inline I set1_dot(const uint8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
static inline I dot(I sum, Q w, I a) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(a, w.w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

static inline F bf16_even(I pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
static inline F bf16_odd(I pair) {
  return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

static inline I xor_i(I a, I b) { return _mm256_xor_si256(a, b); }
static inline int32_t reduce_xor(I x) {
  __m128i s = _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_xor_si128(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_xor_si128(s, _mm_shuffle_epi32(s, 0xb1)));
}
static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
