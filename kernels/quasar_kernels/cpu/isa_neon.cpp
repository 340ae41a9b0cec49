// The NEON dot-product table. 32 registers of 4 lanes: 6 rows × 1 tile.
// System headers come first: what follows the pragma, and only that, is compiled for this instruction set.
#include "kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=armv8.2-a+dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace quasar {
namespace neon {
#include "simd_neon.h"

constexpr int kInt8Rows = 6, kInt8Wide = 1, kInt8Narrow = 2;
constexpr int kBf16Rows = 4, kBf16Wide = 1, kBf16Narrow = 2;
constexpr int kProductVectors = 4;
constexpr long kAhead = 1024;  // bytes prefetched ahead of each stream

#include "table.inl"
}  // namespace neon

extern constexpr Kernels neon_kernels = neon::table("neon");
}  // namespace quasar

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
