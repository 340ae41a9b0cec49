// The kernels of one instruction set as a table of functions, and the packed layouts they read.
//
// Every table entry is serial and computes a fixed piece of an output (a row, a few 16-output tiles of some rows, one attention block);
// ops.cpp splits an op into such pieces. Nothing here depends on how many rows or threads there are: that is what makes the row of a token
// bitwise the same in every pass.
//
// Layout of packed weights. 16 outputs form a tile, stored one after the other so that a step reads one forward stream:
//   INT8: int32[16] = −128·Σₖ w, then for each group of 4 inputs 16 × 4 bytes (the four of output 0, of output 1, …). The sums let VNNI,
//         which multiplies unsigned by signed bytes, read activations as q + 128; the other instruction sets skip them.
//   BF16: for each pair of inputs 16 × 2 halves, so that a shift widens the even and a mask the odd one.
// Outputs beyond N and inputs beyond K are zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quasar {

constexpr long kTile = 16;       // outputs per packed tile
constexpr long kBlock = 64;      // cache positions per attention block
constexpr long kHeader = 64;     // bytes before the INT8 weights of a tile
constexpr long kLine = 64;       // bytes per group of inputs in a tile

inline long ceil_div(long a, long b) { return (a + b - 1) / b; }
inline long int8_tile_bytes(long k) { return kHeader + ceil_div(k, 4) * kLine; }
inline long bf16_tile_bytes(long k) { return ceil_div(k, 2) * kLine; }

struct Transform {
  const float* inv_smooth;
  const float* shift;
  const float* rotation;  // [side, side]; the row's length is a power of two times side
  long side;
};

// y[m, n] = product · (scale[m] · wscale[n]) + bias[n] + residual[m, n]; null pointers drop a term. The BF16 product has no scales.
struct Linear {
  const void* x;  // INT8: rows from int8_prepare; BF16: f32 rows
  long x_stride;  // elements from row to row
  const char* weight;
  long rows, outputs, inputs;
  const float* scale;
  const float* wscale;
  const float* bias;
  const float* residual;
  float* y;
};

struct Rope {
  const float* qkv;
  long rows, heads, groups, size;
  float* k_cache;
  float* v_cache;
  long k_stride, v_stride;  // floats from group to group
  long start;
  const float* cos;
  const float* sin;
  const float* q_norm;
  const float* k_norm;
  float eps;
  float* q;
};

// One query row's view of the cache: logical positions begin … end−1; position p lies at cache row p, or path[p − prefix] from `prefix` on.
struct View {
  long begin, end;
  const int* path;
};

struct Attend {
  const float* q;
  long rows, heads, groups, size;
  const float* k_cache;
  const float* v_cache;
  long k_stride, v_stride;
  const View* views;
  long prefix;  // rows before it are shared by all queries
  float* out;
};

// Softmax state of one (row, head): maximum, sum, then `size` weighted values.
inline long state_floats(long size) { return size + 2; }

struct Kernels {
  const char* name;
  void (*quantize_row)(const float* x, const Transform& transform, long k, float* work, int8_t* q, float* scale);  // work: 2·k floats, of which x may be the first k
  void (*rotate_row)(const float* x, const float* rotation, long side, long k, float* work, float* y);  // work: k floats; y may be x
  void (*rmsnorm_row)(const float* x, const float* w, float eps, long k, float* y);
  void (*silu_mul_row)(const float* gate_up, long k, float* y);
  void (*int8_prepare)(const int8_t* q, long k, uint8_t* out);  // one row, padded to a multiple of 4
  void (*int8_tiles)(const Linear& job, long row0, long row1, long tile0, long tile1);
  void (*bf16_tiles)(const Linear& job, long row0, long row1, long tile0, long tile1);
  void (*rope_row)(const Rope& job, long row);
  // States of rows row0…row1−1 of one group over the block at `begin`: state[(row − row0)·(heads/groups) + head]. Rows that see nothing of
  // the block are left alone. work: attend_work_floats.
  void (*attend_block)(const Attend& job, long group, long row0, long row1, long begin, float* state, float* work);
  void (*attend_merge)(float* total, const float* part, long size);  // total ← total and then part
  void (*attend_finish)(const float* total, long size, float* out);
  // The k largest of x[0…n) with their places counted from id0, fewer when n < k; state: maximum and Σ exp(x − maximum), NaN if one is.
  void (*top_part)(const float* x, long n, int32_t id0, long k, float* values, int32_t* ids, float* state);
  uint64_t (*stream)(const char* data, size_t bytes);  // reads every byte
};

// Keys of a block transposed, its values, scaled queries and scores of one row.
inline long attend_work_floats(long size, long queries) { return 2 * kBlock * (size + 16) + queries * (size + 16 + kBlock); }

extern const Kernels scalar_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#elif defined(__aarch64__)
extern const Kernels neon_kernels;
#endif

// The table in use (see dispatch.cpp).
const Kernels& kernels();

}  // namespace quasar
