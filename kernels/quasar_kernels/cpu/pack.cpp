// Packing: from row-major weights to the layouts of kernels.h and back. Done once per model, so plain loops, one task per tile.
#include <cstring>

#include "ops.h"
#include "pool.h"

namespace quasar {

size_t packed_int8_bytes(long n, long k) { return static_cast<size_t>(ceil_div(n, kTile) * int8_tile_bytes(k)); }
size_t packed_bf16_bytes(long n, long k) { return static_cast<size_t>(ceil_div(n, kTile) * bf16_tile_bytes(k)); }

void pack_int8(const int8_t* w, long n, long k, char* packed) {
  parallel(ceil_div(n, kTile), [=](long tile) {
    char* out = packed + tile * int8_tile_bytes(k);
    std::memset(out, 0, static_cast<size_t>(int8_tile_bytes(k)));
    for (long i = 0; i < kTile && tile * kTile + i < n; ++i) {
      const int8_t* row = w + (tile * kTile + i) * k;
      int32_t sum = 0;
      for (long j = 0; j < k; ++j) {
        out[kHeader + j / 4 * kLine + i * 4 + j % 4] = static_cast<char>(row[j]);
        sum += row[j];
      }
      sum *= -128;
      std::memcpy(out + i * 4, &sum, 4);
    }
  });
}

void unpack_int8(const char* packed, long n, long k, int8_t* w) {
  for (long i = 0; i < n; ++i) {
    const char* tile = packed + i / kTile * int8_tile_bytes(k) + kHeader + i % kTile * 4;
    for (long j = 0; j < k; ++j) w[i * k + j] = static_cast<int8_t>(tile[j / 4 * kLine + j % 4]);
  }
}

void pack_bf16(const uint16_t* w, long n, long k, char* packed) {
  parallel(ceil_div(n, kTile), [=](long tile) {
    char* out = packed + tile * bf16_tile_bytes(k);
    std::memset(out, 0, static_cast<size_t>(bf16_tile_bytes(k)));
    for (long i = 0; i < kTile && tile * kTile + i < n; ++i) {
      const uint16_t* row = w + (tile * kTile + i) * k;
      for (long j = 0; j < k; ++j) std::memcpy(out + j / 2 * kLine + i * 4 + j % 2 * 2, row + j, 2);
    }
  });
}

void unpack_bf16(const char* packed, long n, long k, uint16_t* w) {
  for (long i = 0; i < n; ++i) {
    const char* tile = packed + i / kTile * bf16_tile_bytes(k) + i % kTile * 4;
    for (long j = 0; j < k; ++j) std::memcpy(w + i * k + j, tile + j / 2 * kLine + j % 2 * 2, 2);
  }
}

}  // namespace quasar
