// The AVX2 + FMA table. 16 registers: INT8 keeps 4 rows × 1 tile (8 sums, weights and their magnitudes, one activation).
// System headers come first: what follows the pragma, and only that, is compiled for this instruction set.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

namespace quasar {
namespace avx2 {
#include "simd_avx2.h"

constexpr int kInt8Rows = 4, kInt8Wide = 1, kInt8Narrow = 1;
constexpr int kBf16Rows = 6, kBf16Wide = 1, kBf16Narrow = 4;
constexpr int kProductVectors = 2;
constexpr long kAhead = 2048;  // bytes prefetched ahead of each stream

#include "table.inl"
}  // namespace avx2

extern constexpr Kernels avx2_kernels = avx2::table("avx2");
}  // namespace quasar

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
