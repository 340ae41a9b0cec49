// The ops of reference.py on raw pointers: kernels split into tasks for the pool. All matrices are dense and row-major.
#pragma once

#include "kernels.h"

namespace quasar {

void quantize_rows(const float* x, const Transform& transform, long rows, long k, int8_t* q, float* scale);
void rotate(const float* x, const float* rotation, long side, long rows, long k, float* y);
void rmsnorm(const float* x, const float* w, float eps, long rows, long k, float* y);
void rmsnorm_quantize(const float* x, const float* w, float eps, const Transform& transform, long rows, long k, int8_t* q, float* scale);
void silu_mul(const float* gate_up, long rows, long k, float* y);  // gate_up: 2·k wide
void silu_mul_quantize(const float* gate_up, const Transform& transform, long rows, long k, int8_t* q, float* scale);
void linear_w8a8(const int8_t* q, Linear job);  // job.x and job.x_stride are filled here
void linear_bf16(const Linear& job);
void rope_append(const Rope& job);
// lengths[row]: logical positions that a row sees; parents: null for a chain; window: 0 for none.
void attend(Attend job, const long* lengths, const long* parents, long window);
// Per row the k largest with their places, the lowest first among equals, and log Σ exp. A row with a NaN: all NaN, places 0 … k−1.
void top_rows(const float* x, long rows, long n, long k, float* values, int64_t* ids, float* log_sums);
uint64_t stream_read(const char* data, size_t bytes);

size_t packed_int8_bytes(long n, long k);
size_t packed_bf16_bytes(long n, long k);
void pack_int8(const int8_t* w, long n, long k, char* packed);
void unpack_int8(const char* packed, long n, long k, int8_t* w);
void pack_bf16(const uint16_t* w, long n, long k, char* packed);
void unpack_bf16(const char* packed, long n, long k, uint16_t* w);

}  // namespace quasar
