// One lane of plain C++: the meaning of every vector operation, and the fallback where no instruction set fits.
//
// Each simd_*.h defines the same small vocabulary: W lanes of float (F) and int32 (I), and Q, weights of W outputs × 4 inputs.
#pragma once


constexpr int W = 1;
using F = float;
using I = int32_t;
struct Q {
  int8_t w[4];
};

static inline F load(const float* p) { return *p; }
static inline F load_n(const float*, int) { return 0.0f; }  // n < W lanes, the rest zero: never called with W = 1
static inline void store(float* p, F x) { *p = x; }
static inline void store_n(float*, F, int) {}
static inline F set1(float x) { return x; }
static inline F add(F a, F b) { return a + b; }
static inline F sub(F a, F b) { return a - b; }
static inline F mul(F a, F b) { return a * b; }
static inline F div(F a, F b) { return a / b; }
static inline F fma(F a, F b, F c) { return std::fma(a, b, c); }
static inline F max(F a, F b) { return a > b ? a : b; }
static inline F min(F a, F b) { return a < b ? a : b; }
template <int S>
static inline F swap(F x) {  // lanes i and i ^ S, for S < W a power of two: never called with W = 1
  return x;
}
static inline F where_less(F a, F b, F yes, F no) { return a < b ? yes : no; }
static inline F where_nan(F a, F yes, F no) { return a != a ? yes : no; }
static inline unsigned not_less(F a, F b) { return !(a < b); }  // a bit per lane, set where a or b is NaN
static inline float reduce_add(F x) { return x; }
static inline float reduce_max(F x) { return x; }

static inline I zero() { return 0; }
static inline I load_i(const void* p) {
  I x;
  std::memcpy(&x, p, 4);
  return x;
}
static inline I round_i(F x) { return static_cast<I>(std::nearbyint(x)); }
static inline F to_float(I x) { return static_cast<F>(x); }
static inline I bits(F x) { return load_i(&x); }
static inline I abs_bits(F x) { return bits(x) & 0x7fffffff; }
static inline I max_i(I a, I b) { return a > b ? a : b; }
static inline int32_t reduce_max_i(I x) { return x; }
static inline F pow2(I n) {  // 2ⁿ for −126 ≤ n ≤ 127
  const I word = static_cast<I>(static_cast<uint32_t>(n + 127) << 23);
  F x;
  std::memcpy(&x, &word, 4);
  return x;
}
static inline void store_i8(int8_t* p, I x) { *p = static_cast<int8_t>(x); }

constexpr bool kUnsignedActivations = false;
static inline I start_dot(const int32_t*) { return 0; }
static inline Q load_q(const int8_t* p) {
  Q q;
  std::memcpy(&q, p, 4);
  return q;
}
static inline I set1_dot(const uint8_t* p) { return load_i(p); }
static inline I dot(I sum, Q w, I a) {  // sum + Σ of four byte products per lane
  int8_t x[4];
  std::memcpy(x, &a, 4);
  return sum + w.w[0] * x[0] + w.w[1] * x[1] + w.w[2] * x[2] + w.w[3] * x[3];
}

static inline F bf16_even(I pair) {
  const I word = static_cast<I>(static_cast<uint32_t>(pair) << 16);
  F x;
  std::memcpy(&x, &word, 4);
  return x;
}
static inline F bf16_odd(I pair) {
  const I word = pair & static_cast<I>(0xffff0000u);
  F x;
  std::memcpy(&x, &word, 4);
  return x;
}

static inline I xor_i(I a, I b) { return a ^ b; }
static inline int32_t reduce_xor(I x) { return x; }
static inline void prefetch(const void*) {}
static inline void prefetch_far(const void*) {}  // into the second-level cache

// Eight dimensions of eight rows → out[dimension · kBlock + row].
static inline void transpose8(const float* const* rows, long dimension, float* out, long stride) {
  for (int d = 0; d < 8; ++d) {
    for (int r = 0; r < 8; ++r) out[d * stride + r] = rows[r][dimension + d];
  }
}
