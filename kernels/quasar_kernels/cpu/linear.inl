// The two matrix products: M rows times T tiles of 16 outputs, held in registers while K runs once through the packed weights.
//
// Idea. At batch 1 a step is the time to read the weights, so the inner loop reads T forward streams, prefetches each, and reuses every
// weight for all M rows from a register. More rows than fit are done in equal blocks that find the tile in the cache.
// Exactness. Each output is one chain of operations in the order of k. Which rows or tiles share a block only decides what else is in
// flight, never an operation or its order.
// What is lost. FP32 sums of one long chain round a little more than blocked ones; INT32 sums do not care.

static inline void finish(const Linear& job, long row, long n, F y) {
  const long left = job.outputs - n;
  if (left <= 0) return;
  if (job.bias) y = add(y, load_up_to(job.bias + n, left));
  if (job.residual) y = add(y, load_up_to(job.residual + row * job.outputs + n, left));
  store_up_to(job.y + row * job.outputs + n, y, left);
}

// Addresses of the T weight streams and M rows of a block; part v of a line is where its vector v begins.
template <class X, int M, int T>
struct Streams {
  static constexpr int kPer = kTile / W;  // vectors per tile
  const X* x[M];
  const char* w[T];

  Streams(const Linear& job, long row, long tile, long tile_bytes) {
    UNROLL for (int m = 0; m < M; ++m) x[m] = static_cast<const X*>(job.x) + (row + m) * job.x_stride;
    UNROLL for (int t = 0; t < T; ++t) w[t] = job.weight + (tile + t) * tile_bytes;
  }
  const char* vector(int v, long offset) const { return w[v / kPer] + offset + v % kPer * W * 4; }
  void ahead(long offset) const {
    UNROLL for (int t = 0; t < T; ++t) prefetch(w[t] + offset);
  }
};

// How far ahead to prefetch up to line `end`: near the end of a stream, what comes next is the tile that its successor block starts with,
// behind the other streams' tiles. With K = 576 a tenth of all lines would otherwise come unannounced.
struct Leap {
  long end, distance;
};
struct Leaps {
  Leap part[2];
  const Leap* begin() const { return part; }
  const Leap* end() const { return part + 2; }
};
static inline Leaps leaps(long lines, long others) {
  const long last = kAhead / kLine < lines ? lines - kAhead / kLine : 0;
  return {{{last, kAhead}, {lines, kAhead + others}}};
}

struct Int8 {
  static constexpr int kRows = kInt8Rows;  // the most rows of a block
  static constexpr int kWide = kInt8Wide;  // tiles of a block with three rows or more
  static constexpr int kNarrow = kInt8Narrow;

  template <int M, int T>
  static void block(const Linear& job, long row, long tile) {
    constexpr int V = T * kTile / W;
    const Streams<uint8_t, M, T> from(job, row, tile, int8_tile_bytes(job.inputs));
    I sum[M][V];
    UNROLL for (int v = 0; v < V; ++v) {
      UNROLL for (int m = 0; m < M; ++m) sum[m][v] = start_dot(reinterpret_cast<const int32_t*>(from.vector(v, 0)));
    }
    const long groups = ceil_div(job.inputs, 4);
    long g = 0;
    for (const Leap& leap : leaps(groups, (T - 1) * int8_tile_bytes(job.inputs))) {
#pragma GCC unroll 1
      for (; g < leap.end; ++g) {
        const long offset = kHeader + g * kLine;
        from.ahead(offset + leap.distance);
        Q w[V];
        UNROLL for (int v = 0; v < V; ++v) w[v] = load_q(reinterpret_cast<const int8_t*>(from.vector(v, offset)));
        UNROLL for (int m = 0; m < M; ++m) {
          const I a = set1_dot(from.x[m] + 4 * g);
          UNROLL for (int v = 0; v < V; ++v) sum[m][v] = dot(sum[m][v], w[v], a);
        }
      }
    }
    UNROLL for (int v = 0; v < V; ++v) {
      const long n = tile * kTile + v * W, left = job.outputs - n;
      if (left > 0) {
        const F wscale = load_up_to(job.wscale + n, left);
        UNROLL for (int m = 0; m < M; ++m) {
          finish(job, row + m, n, mul(to_float(sum[m][v]), mul(set1(job.scale[row + m]), wscale)));
        }
      }
    }
  }
};

struct Bf16 {
  static constexpr int kRows = kBf16Rows;
  static constexpr int kWide = kBf16Wide;
  static constexpr int kNarrow = kBf16Narrow;

  template <int M, int T>
  static void block(const Linear& job, long row, long tile) {
    constexpr int V = T * kTile / W;
    const Streams<float, M, T> from(job, row, tile, bf16_tile_bytes(job.inputs));
    F sum[M][V];
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int v = 0; v < V; ++v) sum[m][v] = set1(0.0f);
    }
    const long pairs = job.inputs / 2;
    long p = 0;
    for (const Leap& leap : leaps(pairs, (T - 1) * bf16_tile_bytes(job.inputs))) {
#pragma GCC unroll 1
      for (; p < leap.end; ++p) {
        const long offset = p * kLine;
        from.ahead(offset + leap.distance);
        F w[V];
        UNROLL for (int v = 0; v < V; ++v) w[v] = bf16_even(load_i(from.vector(v, offset)));
        UNROLL for (int m = 0; m < M; ++m) {
          const F a = set1(from.x[m][2 * p]);
          UNROLL for (int v = 0; v < V; ++v) sum[m][v] = fma(a, w[v], sum[m][v]);
        }
        UNROLL for (int v = 0; v < V; ++v) w[v] = bf16_odd(load_i(from.vector(v, offset)));
        UNROLL for (int m = 0; m < M; ++m) {
          const F a = set1(from.x[m][2 * p + 1]);
          UNROLL for (int v = 0; v < V; ++v) sum[m][v] = fma(a, w[v], sum[m][v]);
        }
      }
    }
    if (job.inputs % 2) {
      UNROLL for (int v = 0; v < V; ++v) {
        const F w = bf16_even(load_i(from.vector(v, pairs * kLine)));
        UNROLL for (int m = 0; m < M; ++m) sum[m][v] = fma(set1(from.x[m][2 * pairs]), w, sum[m][v]);
      }
    }
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int v = 0; v < V; ++v) finish(job, row + m, tile * kTile + v * W, sum[m][v]);
    }
  }
};

template <class Kind, int T, int M = Kind::kRows>
static inline void block_of(const Linear& job, long row, long rows, long tile) {
  if (rows == M) {
    Kind::template block<M, T>(job, row, tile);
  } else if constexpr (M > 1) {
    block_of<Kind, T, M - 1>(job, row, rows, tile);
  }
}

template <class Kind, int T>
static void tiles_by(const Linear& job, long row0, long row1, long tile0, long tile1) {
  const long rows = row1 - row0, most = ceil_div(rows, ceil_div(rows, Kind::kRows));
  long tile = tile0;
  for (; tile + T <= tile1; tile += T) {
    for (long row = row0; row < row1; row += most) block_of<Kind, T>(job, row, row1 - row < most ? row1 - row : most, tile);
  }
  if constexpr (T > 1) {
    if (tile < tile1) tiles_by<Kind, T / 2>(job, row0, row1, tile, tile1);
  }
}

template <class Kind>
static void tiles(const Linear& job, long row0, long row1, long tile0, long tile1) {
  if (row1 - row0 > 2) {
    tiles_by<Kind, Kind::kWide>(job, row0, row1, tile0, tile1);
  } else {
    tiles_by<Kind, Kind::kNarrow>(job, row0, row1, tile0, tile1);
  }
}
