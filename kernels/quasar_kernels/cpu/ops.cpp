// See ops.h. How a task is cut decides speed only: every row, tile and block is computed the same way wherever the cut falls.
#include "ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "pool.h"
#include "scratch.h"

namespace quasar {
namespace {

constexpr long kRowGrain = 32768;      // floats of row work that are worth waking another thread
constexpr long kTasksPerThread = 6;    // small enough pieces that a late or slow thread costs little
constexpr long kTopPart = 8192;        // numbers of a row whose exponentials are summed as one: fixed, so sums never depend on the cut
constexpr long kRowsPerTask = 96;      // of a wide pass: activations of that many rows stay in the cache

template <class Function>
void each_row(long rows, long floats_per_row, const Function& function) {
  const long grain = floats_per_row >= kRowGrain ? 1 : kRowGrain / (floats_per_row + 1) + 1;
  parallel(ceil_div(rows, grain), [&](long task) {
    const long end = (task + 1) * grain < rows ? (task + 1) * grain : rows;
    for (long row = task * grain; row < end; ++row) function(row);
  });
}

long rotation_cost(long side, long k) { return k * (3 + side / 4); }
long cost(const Transform& transform, long k) { return 4 * k + (transform.rotation ? rotation_cost(transform.side, k) : 0); }

// A decoder step reads a hundred megabytes between two uses of a layer's rotation, so it comes from memory: asked for before the norm, the
// gate or the butterflies, it is there when they are done.
void prefetch_rotation(const Transform& transform) {
  if (!transform.rotation) return;
  for (long i = 0; i < transform.side * transform.side; i += 16) __builtin_prefetch(transform.rotation + i);
}

using Tiles = void (*)(const Linear&, long, long, long, long);

void linear(const Linear& job, Tiles kernel) {
  const long tiles = ceil_div(job.outputs, kTile);
  const long row_tasks = ceil_div(job.rows, kRowsPerTask);
  const long wanted = ceil_div(kTasksPerThread * get_threads(), row_tasks);
  long grain = ceil_div(tiles, wanted);
  grain = grain < 4 ? (grain + 1) / 2 * 2 : ceil_div(grain, 4) * 4;
  if (grain > 16) grain = 16;
  // What does not make a whole task for every thread is shared out in equal, smaller ones: 36 tiles are 8 tasks of 4 and 2 of 2 for two
  // threads, not 9 of 4, of which one thread would do 5.
  const long threads = get_threads(), whole = tiles / (grain * threads) * threads, rest = tiles - whole * grain;
  const long small = ceil_div(ceil_div(rest, threads), 2) * 2;
  const long tile_tasks = whole + (rest > 0 ? ceil_div(rest, small) : 0);
  parallel(row_tasks * tile_tasks, [&](long task) {
    const long row = task / tile_tasks * kRowsPerTask, part = task % tile_tasks;
    const long tile = part < whole ? part * grain : whole * grain + (part - whole) * small;
    const long row_end = std::min(row + kRowsPerTask, job.rows);
    kernel(job, row, row_end, tile, std::min(tile + (part < whole ? grain : small), tiles));
  });
}

}  // namespace

void quantize_rows(const float* x, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k), [&](long row) {
    prefetch_rotation(transform);
    table.quantize_row(x + row * k, transform, k, scratch_of<float>(kRowWork, 2 * k), q + row * k, scale + row);
  });
}

void rotate(const float* x, const float* rotation, long side, long rows, long k, float* y) {
  const Kernels& table = kernels();
  each_row(rows, rotation_cost(side, k), [&](long row) {
    table.rotate_row(x + row * k, rotation, side, k, scratch_of<float>(kRowWork, k), y + row * k);
  });
}

void rmsnorm(const float* x, const float* w, float eps, long rows, long k, float* y) {
  const Kernels& table = kernels();
  each_row(rows, k, [&](long row) { table.rmsnorm_row(x + row * k, w, eps, k, y + row * k); });
}

void rmsnorm_quantize(const float* x, const float* w, float eps, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k), [&](long row) {
    prefetch_rotation(transform);
    float* work = scratch_of<float>(kRowWork, 2 * k);
    table.rmsnorm_row(x + row * k, w, eps, k, work);
    table.quantize_row(work, transform, k, work, q + row * k, scale + row);
  });
}

void silu_mul(const float* gate_up, long rows, long k, float* y) {
  const Kernels& table = kernels();
  each_row(rows, 4 * k, [&](long row) { table.silu_mul_row(gate_up + row * 2 * k, k, y + row * k); });
}

void silu_mul_quantize(const float* gate_up, const Transform& transform, long rows, long k, int8_t* q, float* scale) {
  const Kernels& table = kernels();
  each_row(rows, cost(transform, k) + 4 * k, [&](long row) {
    prefetch_rotation(transform);
    float* work = scratch_of<float>(kRowWork, 2 * k);
    table.silu_mul_row(gate_up + row * 2 * k, k, work);
    table.quantize_row(work, transform, k, work, q + row * k, scale + row);
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

void top_rows(const float* x, long rows, long n, long k, float* values, int64_t* ids, float* log_sums) {
  const Kernels& table = kernels();
  const long parts = ceil_div(n, kTopPart), most = k < kTopPart ? k : kTopPart;
  float* states = scratch_of<float>(kStates, rows * parts * 2);
  float* tops = scratch_of<float>(kRowFloats, rows * parts * most);
  int32_t* places = scratch_of<int32_t>(kPaths, rows * parts * most);
  const auto size = [=](long part) { return part + 1 < parts ? kTopPart : n - part * kTopPart; };
  parallel(rows * parts, [&](long task) {
    const long row = task / parts, part = task % parts;
    table.top_part(x + row * n + part * kTopPart, size(part), static_cast<int32_t>(part * kTopPart), most, tops + task * most,
                   places + task * most, states + task * 2);
  });
  std::vector<long> next(static_cast<size_t>(parts));
  for (long row = 0; row < rows; ++row) {
    const float* state = states + row * parts * 2;
    float top = state[0], sum = 0.0f;
    for (long part = 1; part < parts; ++part) top = std::max(top, state[2 * part]);
    for (long part = 0; part < parts; ++part) {
      sum += state[2 * part + 1] * (state[2 * part] == top ? 1.0f : std::exp(state[2 * part] - top));
    }
    bool nan = false;
    for (long part = 0; part < parts; ++part) nan |= std::isnan(state[2 * part + 1]);
    log_sums[row] = nan ? NAN : std::isinf(top) ? top : top + std::log(sum);
    std::fill(next.begin(), next.end(), 0);
    for (long i = 0; i < k; ++i) {
      if (nan) {
        values[row * k + i] = NAN;
        ids[row * k + i] = i;
        continue;
      }
      long best = -1;
      for (long part = 0; part < parts; ++part) {
        if (next[part] == std::min(most, size(part))) continue;
        if (best < 0 || tops[(row * parts + part) * most + next[part]] > tops[(row * parts + best) * most + next[best]]) best = part;
      }
      const long at = (row * parts + best) * most + next[best]++;
      values[row * k + i] = tops[at];
      ids[row * k + i] = places[at];
    }
  }
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
