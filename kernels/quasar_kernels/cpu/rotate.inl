// The rotation of a row: x [k], seen as X [side, n], becomes rotationᵀ · X · H with the normalized Walsh-Hadamard matrix H of size n.
//
// H costs log₂ n additions per number instead of n products: butterflies (a, b) → (a + b, a − b) at distance 1, 2, 4, …, n/2. Distances below
// a vector are met inside registers, the next three on the eight registers just loaded, and only then memory is walked again, up to eight
// places at once. The small dense matrix mixes the `side` rows, a broadcast and a vector at a time.
//
// Exact to the reference in every instruction set: the scale comes first, a butterfly rounds once per output, and the mixing multiplies and
// adds apart, in the order of the rows. An FMA would round less, but torch has none, and where additions have their own units it is no faster.

constexpr int kTogether = 8;  // vectors of one row that go through butterflies without memory between

template <int S>
struct Signs {  // +1 in the lanes that a butterfly at distance S adds, −1 in those that it subtracts
  alignas(64) float lanes[16];
  constexpr Signs() : lanes() {
    for (int i = 0; i < 16; ++i) lanes[i] = i & S ? -1.0f : 1.0f;
  }
};
template <int S>
static constexpr Signs<S> kSigns;

// Butterflies inside a vector, at distances S, 2·S, … below n. The product with ±1 is exact, so the FMA is an addition or a subtraction.
template <int S>
static inline F butterflies_within(F x, long n) {
  if constexpr (S < W) {
    if (S < n) return butterflies_within<2 * S>(fma(x, load(kSigns<S>.lanes), swap<S>(x)), n);
  }
  return x;
}

// Butterflies among V vectors, at distances S, 2·S, … below V.
template <int V, int S>
static inline void butterflies_among(F* x) {
  if constexpr (S < V) {
    UNROLL for (int v = 0; v < V; ++v) {
      if (v & S) continue;
      const F a = x[v], b = x[v + S];
      x[v] = add(a, b);
      x[v + S] = sub(a, b);
    }
    butterflies_among<V, 2 * S>(x);
  }
}

template <int V>
static void hadamard_first(const float* x, float scale, long k, float* y) {
  for (long i = 0; i < k; i += V * W) {
    F v[V];
    UNROLL for (int j = 0; j < V; ++j) v[j] = butterflies_within<1>(mul(load(x + i + j * W), set1(scale)), W);
    butterflies_among<V, 1>(v);
    UNROLL for (int j = 0; j < V; ++j) store(y + i + j * W, v[j]);
  }
}

template <int V>
static void hadamard_next(float* x, long distance, long k) {
  for (long begin = 0; begin < k; begin += V * distance) {
    for (long i = begin; i < begin + distance; i += W) {
      F v[V];
      UNROLL for (int j = 0; j < V; ++j) v[j] = load(x + i + j * distance);
      butterflies_among<V, 1>(v);
      UNROLL for (int j = 0; j < V; ++j) store(x + i + j * distance, v[j]);
    }
  }
}

// Every n neighbours of x[0…k) times H. n: a power of two that divides k.
static void hadamard(const float* x, long n, long k, float* y) {
  const float scale = __builtin_sqrtf(1.0f / static_cast<float>(n));
  if (n < W) {
    for (long i = 0; i < k; i += W) {
      store_up_to(y + i, butterflies_within<1>(mul(load_up_to(x + i, k - i), set1(scale)), n), k - i);
    }
    return;
  }
  switch (n / W) {
    case 1: hadamard_first<1>(x, scale, k, y); break;
    case 2: hadamard_first<2>(x, scale, k, y); break;
    case 4: hadamard_first<4>(x, scale, k, y); break;
    default: hadamard_first<kTogether>(x, scale, k, y); break;
  }
  for (long distance = kTogether * W; distance < n; distance *= kTogether) {
    switch (n / distance) {
      case 2: hadamard_next<2>(y, distance, k); break;
      case 4: hadamard_next<4>(y, distance, k); break;
      default: hadamard_next<kTogether>(y, distance, k); break;
    }
  }
}

// y[h, ·] = Σ_p rotation[p, h] · x[p, ·] for H rows and V vectors of their columns.
template <int H, int V>
static inline void mix_block(const float* x, const float* rotation, long side, long n, float* y) {
  F sum[H][V];
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int v = 0; v < V; ++v) sum[h][v] = set1(0.0f);
  }
  for (long p = 0; p < side; ++p) {
    F row[V];
    UNROLL for (int v = 0; v < V; ++v) row[v] = load(x + p * n + v * W);
    UNROLL for (int h = 0; h < H; ++h) {
      const F turn = set1(rotation[p * side + h]);
      UNROLL for (int v = 0; v < V; ++v) sum[h][v] = add(sum[h][v], mul(turn, row[v]));
    }
  }
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int v = 0; v < V; ++v) store(y + h * n + v * W, sum[h][v]);
  }
}

template <int V>
static void mix_columns(const float* x, const float* rotation, long side, long n, float* y) {
  for (long h = 0; h < side; h += 4, rotation += 4, y += 4 * n) {
    switch (side - h) {
      case 1: mix_block<1, V>(x, rotation, side, n, y); break;
      case 2: mix_block<2, V>(x, rotation, side, n, y); break;
      case 3: mix_block<3, V>(x, rotation, side, n, y); break;
      default: mix_block<4, V>(x, rotation, side, n, y); break;
    }
  }
}

// The same for rows narrower than a vector: the lanes are rows of the result, the order of the sums is the same.
static void mix_narrow(const float* x, const float* rotation, long side, long n, float* y) {
  for (long h = 0; h < side; h += W) {
    const long left = side - h < W ? side - h : W;
    for (long j = 0; j < n; ++j) {
      F sum = set1(0.0f);
      for (long p = 0; p < side; ++p) sum = add(sum, mul(load_up_to(rotation + p * side + h, left), set1(x[p * n + j])));
      float lanes[W];
      store(lanes, sum);
      for (long i = 0; i < left; ++i) y[(h + i) * n + j] = lanes[i];
    }
  }
}

static void rotate_row(const float* x, const float* rotation, long side, long k, float* work, float* y) {
  const long n = k / side;
  hadamard(x, n, k, work);
  if (n < W) return mix_narrow(work, rotation, side, n, y);
  long j = 0;
  for (; j + kProductVectors * W <= n; j += kProductVectors * W) mix_columns<kProductVectors>(work + j, rotation, side, n, y + j);
  for (; j < n; j += W) mix_columns<1>(work + j, rotation, side, n, y + j);
}
