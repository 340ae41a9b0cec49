// NEON with the dot-product extension (ARMv8.2, every 64-bit Apple and Neoverse core): sdot multiplies signed by signed bytes, four per lane.
#pragma once

#include <arm_neon.h>

constexpr int W = 4;
using F = float32x4_t;
using I = int32x4_t;
using Q = int8x16_t;

static inline F load(const float* p) { return vld1q_f32(p); }
static inline F load_n(const float* p, int n) {
  float lanes[4] = {0, 0, 0, 0};
  __builtin_memcpy(lanes, p, sizeof(float) * n);
  return vld1q_f32(lanes);
}
static inline void store(float* p, F x) { vst1q_f32(p, x); }
static inline void store_n(float* p, F x, int n) {
  float lanes[4];
  vst1q_f32(lanes, x);
  __builtin_memcpy(p, lanes, sizeof(float) * n);
}
static inline F set1(float x) { return vdupq_n_f32(x); }
static inline F add(F a, F b) { return vaddq_f32(a, b); }
static inline F sub(F a, F b) { return vsubq_f32(a, b); }
static inline F mul(F a, F b) { return vmulq_f32(a, b); }
static inline F div(F a, F b) { return vdivq_f32(a, b); }
static inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
template <int S>
static inline F swap(F x) {
  if constexpr (S == 1) return vrev64q_f32(x);
  return vextq_f32(x, x, 2);
}
static inline F where_less(F a, F b, F yes, F no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }
static inline F where_nan(F a, F yes, F no) { return vbslq_f32(vceqq_f32(a, a), no, yes); }
static inline F max(F a, F b) { return where_less(b, a, a, b); }  // like x86: the second where they do not compare
static inline F min(F a, F b) { return where_less(a, b, a, b); }
static inline unsigned not_less(F a, F b) {
  const uint32_t bits[4] = {1, 2, 4, 8};
  return vaddvq_u32(vbicq_u32(vld1q_u32(bits), vcltq_f32(a, b)));
}
static inline float reduce_add(F x) { return vaddvq_f32(x); }
static inline float reduce_max(F x) { return vmaxvq_f32(x); }

static inline I zero() { return vdupq_n_s32(0); }
static inline I load_i(const void* p) { return vld1q_s32(static_cast<const int32_t*>(p)); }
static inline I round_i(F x) { return vcvtnq_s32_f32(x); }
static inline F to_float(I x) { return vcvtq_f32_s32(x); }
static inline I abs_bits(F x) { return vandq_s32(vreinterpretq_s32_f32(x), vdupq_n_s32(0x7fffffff)); }
static inline I max_i(I a, I b) { return vmaxq_s32(a, b); }
static inline int32_t reduce_max_i(I x) { return vmaxvq_s32(x); }
static inline F pow2(I n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
static inline void store_i8(int8_t* p, I x) {
  const int16x4_t words = vqmovn_s32(x);
  int8_t lanes[8];
  vst1_s8(lanes, vqmovn_s16(vcombine_s16(words, words)));
  __builtin_memcpy(p, lanes, 4);
}

constexpr bool kUnsignedActivations = false;
static inline I start_dot(const int32_t*) { return zero(); }
static inline Q load_q(const int8_t* p) { return vld1q_s8(p); }
static inline I set1_dot(const uint8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return vdupq_n_s32(word);
}
static inline I dot(I sum, Q w, I a) { return vdotq_s32(sum, w, vreinterpretq_s8_s32(a)); }

static inline F bf16_even(I pair) { return vreinterpretq_f32_s32(vshlq_n_s32(pair, 16)); }
static inline F bf16_odd(I pair) { return vreinterpretq_f32_s32(vandq_s32(pair, vdupq_n_s32(static_cast<int>(0xffff0000u)))); }

static inline I xor_i(I a, I b) { return veorq_s32(a, b); }
static inline int32_t reduce_xor(I x) {
  int32_t lanes[4];
  vst1q_s32(lanes, x);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}
static inline void prefetch(const void* p) { __builtin_prefetch(p); }
static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

static inline void transpose8(const float* const* rows, long dimension, float* out, long stride) {
  for (int d = 0; d < 8; ++d) {
    for (int r = 0; r < 8; ++r) out[d * stride + r] = rows[r][dimension + d];
  }
}
