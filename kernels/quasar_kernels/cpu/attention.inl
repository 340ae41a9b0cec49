// Attention over one block of 64 absolute cache positions, and the merging of blocks in position order.
//
// Idea. The keys of a block are transposed once in registers; then scores (queries × keys) and values (weights × values) are the same small
// product, with four queries of a row sharing every load. Each block is a softmax of its own (maximum, sum, weighted values); a row's blocks
// merge in position order. Because a block never depends on the others, blocks may be computed by any thread and the bits stay the same.
// Exactness. A row's products run over exactly the positions that it sees, in order, so what other rows see changes nothing.
// Only rows of the cache that some query sees are read; a tree row reads its own path where it leaves the shared prefix.

static inline long cache_row(const Attend& job, const View& view, long position) {
  return position < job.prefix || !view.path ? position : view.path[position - job.prefix];
}

static inline long later(long a, long b) { return a > b ? a : b; }
static inline long earlier(long a, long b) { return a < b ? a : b; }

// Keys of positions low…high−1 → keys[dimension][position − begin]; columns of the same group of eight are copies of the first.
static void transpose_keys(const Attend& job, long group, const View& view, long begin, long low, long high, float* keys) {
  const float *cache = job.k_cache + group * job.k_stride, *v_cache = job.v_cache + group * job.v_stride;
  for (long p0 = (low - begin) / 8 * 8; p0 < high - begin; p0 += 8) {
    const float* rows[8];
    for (int i = 0; i < 8; ++i) {
      const long position = begin + p0 + i;
      const bool seen = position >= low && position < high;
      rows[i] = cache + cache_row(job, view, seen ? position : low) * job.size;
    }
    // Sixteen rows ahead, and the values that follow: a cache is read page by page, too briefly for the hardware to foresee it.
    for (long f = p0 * job.size; f < (p0 + 8) * job.size; f += kLine / 4) {
      prefetch_far(cache + (begin + 16) * job.size + f);
      prefetch_far(v_cache + begin * job.size + f);
    }
    long d = 0;
    for (; d + 8 <= job.size; d += 8) transpose8(rows, d, keys + d * kBlock + p0, kBlock);
    for (; d < job.size; ++d) {
      for (int i = 0; i < 8; ++i) keys[d * kBlock + p0 + i] = rows[i][d];
    }
  }
}

static void gather_values(const Attend& job, long group, const View& view, long begin, long low, long high, float* values) {
  const float* cache = job.v_cache + group * job.v_stride;
  for (long p = low; p < high; ++p) {
    __builtin_memcpy(values + (p - begin) * job.size, cache + cache_row(job, view, p) * job.size, sizeof(float) * job.size);
  }
}

// Scores of one query → weights exp(score − top) in place, zero outside low…high; returns through state[0] the top, state[1] the sum.
static inline void softmax_block(float* scores, long low, long high, float* state) {
  for (long p = 0; p < low; ++p) scores[p] = -__builtin_inff();
  for (long p = high; p < kBlock; ++p) scores[p] = -__builtin_inff();
  F most = load(scores);
  for (long p = W; p < kBlock; p += W) most = max(most, load(scores + p));
  const float top = reduce_max(most);
  const F shift = set1(top == -__builtin_inff() ? 0.0f : top);
  F sum = set1(0.0f);
  for (long p = 0; p < kBlock; p += W) {
    const F weight = exp_f(sub(load(scores + p), shift));
    sum = add(sum, weight);
    store(scores + p, weight);
  }
  state[0] = top;
  state[1] = reduce_add(sum);
}

static void attend_block(const Attend& job, long group, long row0, long row1, long begin, float* state, float* work) {
  const long size = job.size, per = job.heads / job.groups;
  float* keys = work;
  float* gathered = keys + kBlock * size;
  float* queries = gathered + kBlock * size;
  float* scores = queries + per * size;

  const bool shared = begin + kBlock <= job.prefix || !job.views[row0].path;
  long low = begin + kBlock, high = begin;
  for (long row = row0; row < row1; ++row) {
    if (job.views[row].begin >= begin + kBlock || job.views[row].end <= begin) continue;
    low = earlier(low, later(begin, job.views[row].begin));
    high = later(high, earlier(begin + kBlock, job.views[row].end));
  }
  if (low >= high) return;
  if (shared) transpose_keys(job, group, job.views[row0], begin, low, high, keys);

  const F root = set1(__builtin_sqrtf(static_cast<float>(size)));
  for (long row = row0; row < row1; ++row, state += per * state_floats(size)) {
    const View& view = job.views[row];
    const long from = later(begin, view.begin), to = earlier(begin + kBlock, view.end);
    if (from >= to) continue;
    const float* values = job.v_cache + group * job.v_stride + begin * size;
    if (!shared) {
      transpose_keys(job, group, view, begin, from, to, keys);
      gather_values(job, group, view, begin, from, to, gathered);
      values = gathered;
    }
    const float* q = job.q + (row * job.heads + group * per) * size;
    for (long i = 0; i < per * size; i += W) store_up_to(queries + i, div(load_up_to(q + i, per * size - i), root), per * size - i);
    const long first = (from - begin) / 8 * 8, last = ceil_div(to - begin, 8) * 8;
    product(queries, size, per, keys + first, kBlock, 0, size, scores + first, kBlock, last - first);
    for (long h = 0; h < per; ++h) softmax_block(scores + h * kBlock, from - begin, to - begin, state + h * state_floats(size));
    product(scores, kBlock, per, values, size, from - begin, to - begin, state + 2, state_floats(size), size);
  }
}

static void attend_merge(float* total, const float* part, long size) {
  const float top = part[0] > total[0] ? part[0] : total[0];
  const float shift = top == -__builtin_inff() ? 0.0f : top;
  const F keep = exp_f(set1(total[0] - shift)), take = exp_f(set1(part[0] - shift));
  total[0] = top;
  for (long i = 1; i < size + 2; i += W) {
    const long left = size + 2 - i;
    store_up_to(total + i, add(mul(load_up_to(total + i, left), keep), mul(load_up_to(part + i, left), take)), left);
  }
}

static void attend_finish(const float* total, long size, float* out) {
  for (long i = 0; i < size; i += W) {
    store_up_to(out + i, div(load_up_to(total + 2 + i, size - i), set1(total[1])), size - i);
  }
}
