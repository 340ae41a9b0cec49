// See ops.h. How a task is cut decides speed only: every row, tile and block is computed the same way wherever the cut falls.
#include "ops.h"

#include <atomic>

#include "pool.h"
#include "scratch.h"

namespace quasar {
namespace {

constexpr long kRowGrain = 65536;      // floats of row work that are worth waking another thread
constexpr long kTasksPerThread = 6;    // small enough pieces that a late or slow thread costs little
constexpr long kRowsPerTask = 96;      // of a wide pass: activations of that many rows stay in the cache

template <class Function>
void each_row(long rows, long floats_per_row, const Function& function) {
  const long grain = floats_per_row >= kRowGrain ? 1 : kRowGrain / (floats_per_row + 1) + 1;
  parallel(ceil_div(rows, grain), [&](long task) {
    const long end = (task + 1) * grain < rows ? (task + 1) * grain : rows;
    for (long row = task * grain; row < end; ++row) function(row);
  });
}

long cost(const Transform& transform, long k) { return k * (transform.rotation ? 4 + transform.side / 8 : 4); }

using Tiles = void (*)(const Linear&, long, long, long, long);

void linear(const Linear& job, Tiles kernel) {
  const long tiles = ceil_div(job.outputs, kTile);
  const long row_tasks = ceil_div(job.rows, kRowsPerTask);
  const long wanted = ceil_div(kTasksPerThread * get_threads(), row_tasks);
  long grain = ceil_div(tiles, wanted);
  grain = grain < 4 ? (grain + 1) / 2 * 2 : ceil_div(grain, 4) * 4;
  if (grain > 16) grain = 16;
  const long tile_tasks = ceil_div(tiles, grain);
  parallel(row_tasks * tile_tasks, [&](long task) {
    const long row = task / tile_tasks * kRowsPerTask, tile = task % tile_tasks * grain;
    const long row_end = row + kRowsPerTask < job.rows ? row + kRowsPerTask : job.rows;
    kernel(job, row, row_end, tile, tile + grain < tiles ? tile + grain : tiles);
  });
}

}  // namespace

void quantize_rows(const float* x, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k), [&](long row) {
    table.quantize_row(x + row * k, transform, k, scratch_of<float>(kRowWork, 2 * k), q + row * k, scale + row);
  });
}

void rmsnorm(const float* x, const float* w, float eps, long rows, long k, float* y) {
  const Kernels& table = kernels();
  each_row(rows, k, [&](long row) { table.rmsnorm_row(x + row * k, w, eps, k, y + row * k); });
}

void rmsnorm_quantize(const float* x, const float* w, float eps, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k), [&](long row) {
    float* y = scratch_of<float>(kRowFloats, k);
    table.rmsnorm_row(x + row * k, w, eps, k, y);
    table.quantize_row(y, transform, k, scratch_of<float>(kRowWork, 2 * k), q + row * k, scale + row);
  });
}

void silu_mul(const float* gate_up, long rows, long k, float* y) {
  const Kernels& table = kernels();
  each_row(rows, 4 * k, [&](long row) { table.silu_mul_row(gate_up + row * 2 * k, k, y + row * k); });
}

void silu_mul_quantize(const float* gate_up, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k) + 4 * k, [&](long row) {
    float* y = scratch_of<float>(kRowFloats, k);
    table.silu_mul_row(gate_up + row * 2 * k, k, y);
    table.quantize_row(y, transform, k, scratch_of<float>(kRowWork, 2 * k), q + row * k, scale + row);
  });
}

void linear_w8a8(const int8_t* q, Linear job) {
  const Kernels& table = kernels();
  const long k = job.inputs, padded = ceil_div(k, 4) * 4;
  uint8_t* x = scratch_of<uint8_t>(kActivations, job.rows * padded);
  each_row(job.rows, k / 8, [&](long row) { table.int8_prepare(q + row * k, k, x + row * padded); });
  job.x = x;
  job.x_stride = padded;
  linear(job, table.int8_tiles);
}

void linear_bf16(const Linear& job) { linear(job, kernels().bf16_tiles); }

void rope_append(const Rope& job) {
  const Kernels& table = kernels();
  each_row(job.rows, (job.heads + 2 * job.groups) * job.size, [&](long row) { table.rope_row(job, row); });
}

uint64_t stream_read(const char* data, size_t bytes) {
  const Kernels& table = kernels();
  const size_t piece = 1 << 18;
  std::atomic<uint64_t> sum{0};
  parallel(ceil_div(static_cast<long>(bytes), static_cast<long>(piece)), [&](long task) {
    const size_t begin = static_cast<size_t>(task) * piece;
    sum.fetch_xor(table.stream(data + begin, bytes - begin < piece ? bytes - begin : piece), std::memory_order_relaxed);
  });
  return sum.load();
}

}  // namespace quasar
