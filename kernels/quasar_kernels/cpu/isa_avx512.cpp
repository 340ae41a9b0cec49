// The AVX-512 VNNI table. 32 registers: 6 rows × 4 tiles, 24 sums, 4 weights and an activation.
// System headers come first: what follows the pragma, and only that, is compiled for this instruction set.
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")
#endif

namespace quasar {
namespace avx512 {
#include "simd_avx512.h"

constexpr int kInt8Rows = 6, kInt8Wide = 4, kInt8Narrow = 4;
constexpr int kBf16Rows = 6, kBf16Wide = 4, kBf16Narrow = 4;
constexpr int kProductVectors = 4;
constexpr long kAhead = 512;  // bytes prefetched ahead of each stream

#include "table.inl"
}  // namespace avx512

extern constexpr Kernels avx512_kernels = avx512::table("avx512");
}  // namespace quasar

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
