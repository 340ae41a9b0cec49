// The attention op: which block is computed by which task. Two cuts of the same work, chosen by the number of rows; since every block is a
// softmax of its own and blocks merge in position order in both, a row has the same bits either way.
//   few rows (decoding, verifying): a task is one block of one key/value group for all rows; whoever does the last block of a group merges
//   that group, so nobody waits a second time.
//   many rows (prefill): a task is a tile of rows of one group and merges as it walks the cache, so memory does not grow with the cache.
#include <atomic>
#include <cstring>
#include <new>

#include "ops.h"
#include "pool.h"
#include "scratch.h"

namespace quasar {
namespace {

constexpr long kSplitRows = 16;

// Views of a pass; the path of a tree row lists the cache rows of its ancestors and itself, oldest first, after the prefix.
const View* make_views(const long* lengths, const long* parents, long rows, long window, long* prefix) {
  View* views = scratch_of<View>(kViews, rows);
  *prefix = lengths[0] - 1;
  for (long row = 1; row < rows; ++row) *prefix = lengths[row] - 1 < *prefix ? lengths[row] - 1 : *prefix;
  int* paths = parents ? scratch_of<int>(kPaths, rows * rows) : nullptr;
  for (long row = 0; row < rows; ++row) {
    const long length = lengths[row], begin = window > 0 && length > window ? length - window : 0;
    views[row] = {begin, length, nullptr};
    if (!parents) continue;
    int* path = paths + row * rows;
    long depth = length - *prefix;
    for (long node = row; depth > 0 && node >= 0; node = parents[node]) path[--depth] = static_cast<int>(*prefix + node);
    views[row].path = path;
  }
  return views;
}

bool sees(const View& view, long begin) { return view.begin < begin + kBlock && view.end > begin; }

void clear(float* state, long size) {
  state[0] = -__builtin_inff();
  std::memset(state + 1, 0, sizeof(float) * static_cast<size_t>(size + 1));
}

void attend_few(const Attend& job, long first, long last) {
  const Kernels& table = kernels();
  const long per = job.heads / job.groups, floats = state_floats(job.size), blocks = ceil_div(last - first, kBlock);
  const long slab = job.rows * per * floats;  // states of one (group, block)
  float* states = scratch_of<float>(kStates, job.groups * blocks * slab);
  std::atomic<long>* done = scratch_of<std::atomic<long>>(kDone, job.groups);
  for (long group = 0; group < job.groups; ++group) new (done + group) std::atomic<long>(0);

  const auto merge = [&](long group) {
    float* total = scratch_of<float>(kRowWork, floats);
    for (long at = 0; at < job.rows * per; ++at) {
      const long row = at / per, head = group * per + at % per;
      clear(total, job.size);
      for (long block = 0; block < blocks; ++block) {
        if (!sees(job.views[row], first + block * kBlock)) continue;
        table.attend_merge(total, states + (group * blocks + block) * slab + at * floats, job.size);
      }
      table.attend_finish(total, job.size, job.out + (row * job.heads + head) * job.size);
    }
  };
  parallel(job.groups * blocks, [&](long task) {
    const long group = task / blocks;
    float* work = scratch_of<float>(kAttendWork, attend_work_floats(job.size, per));
    table.attend_block(job, group, 0, job.rows, first + task % blocks * kBlock, states + task * slab, work);
    if (done[group].fetch_add(1, std::memory_order_acq_rel) == blocks - 1) merge(group);
  });
}

void attend_many(const Attend& job) {
  const Kernels& table = kernels();
  const long per = job.heads / job.groups, floats = state_floats(job.size), slab = kSplitRows * per * floats;
  const long row_tiles = ceil_div(job.rows, kSplitRows);
  parallel(row_tiles * job.groups, [&](long task) {
    const long group = task % job.groups;
    const long row0 = (row_tiles - 1 - task / job.groups) * kSplitRows;  // the longest rows first: they take longest
    const long row1 = row0 + kSplitRows < job.rows ? row0 + kSplitRows : job.rows;
    float* total = scratch_of<float>(kStates, 2 * slab);
    float* part = total + slab;
    float* work = scratch_of<float>(kAttendWork, attend_work_floats(job.size, per));
    long first = job.views[row0].begin, last = 0;
    for (long row = row0; row < row1; ++row) {
      if (job.views[row].begin < first) first = job.views[row].begin;
      if (job.views[row].end > last) last = job.views[row].end;
      for (long h = 0; h < per; ++h) clear(total + ((row - row0) * per + h) * floats, job.size);
    }
    for (long begin = first / kBlock * kBlock; begin < last; begin += kBlock) {
      table.attend_block(job, group, row0, row1, begin, part, work);
      for (long row = row0; row < row1; ++row) {
        if (!sees(job.views[row], begin)) continue;
        for (long at = (row - row0) * per * floats, end = at + per * floats; at < end; at += floats) {
          table.attend_merge(total + at, part + at, job.size);
        }
      }
    }
    for (long row = row0; row < row1; ++row) {
      for (long h = 0; h < per; ++h) {
        table.attend_finish(total + ((row - row0) * per + h) * floats, job.size, job.out + (row * job.heads + group * per + h) * job.size);
      }
    }
  });
}

}  // namespace

void attend(Attend job, const long* lengths, const long* parents, long window) {
  if (job.rows == 0) return;
  job.views = make_views(lengths, parents, job.rows, window, &job.prefix);
  long first = job.views[0].begin, last = 0;
  for (long row = 0; row < job.rows; ++row) {
    if (job.views[row].begin < first) first = job.views[row].begin;
    if (job.views[row].end > last) last = job.views[row].end;
  }
  if (job.rows <= kSplitRows) {
    attend_few(job, first / kBlock * kBlock, last);
  } else {
    attend_many(job);
  }
}

}  // namespace quasar
