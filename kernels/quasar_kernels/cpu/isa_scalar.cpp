// The scalar table: runs everywhere, and is what the others are checked against when the extension loads.
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace quasar {
namespace scalar {
#include "simd_scalar.h"

constexpr int kInt8Rows = 4, kInt8Wide = 1, kInt8Narrow = 1;
constexpr int kBf16Rows = 4, kBf16Wide = 1, kBf16Narrow = 1;
constexpr int kProductVectors = 8;
constexpr long kAhead = 0;

#include "table.inl"
}  // namespace scalar

extern constexpr Kernels scalar_kernels = scalar::table("scalar");
}  // namespace quasar
