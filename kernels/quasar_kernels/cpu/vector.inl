// What every kernel file shares: partial vectors, one exponential, one small matrix product. Written once in the vocabulary of simd_*.h and
// compiled into each instruction set's own namespace.
//
// The same code handles the last, partial vector of a row as all others, so a number never depends on where in a row it stands.

// Loops over a few registers must vanish, or the compiler keeps the registers in memory.
#define UNROLL _Pragma("GCC unroll 32")

static inline F load_up_to(const float* p, long left) { return left >= W ? load(p) : load_n(p, static_cast<int>(left)); }
static inline void store_up_to(float* p, F x, long left) {
  if (left >= W) {
    store(p, x);
  } else {
    store_n(p, x, static_cast<int>(left));
  }
}

// eˣ to 2 ulp: x = n·ln 2 + r, a fifth-degree polynomial on |r| ≤ ln 2 / 2 (Cephes expf), times 2ⁿ. Zero below and infinity above the range
// in which 2ⁿ is a normal number; NaN stays NaN.
static inline F exp_f(F x) {
  const F low = set1(-87.33654f), high = set1(88.37f);
  const F clamped = min(max(x, low), high);
  const I n = round_i(mul(clamped, set1(1.44269504f)));
  const F nf = to_float(n);
  const F r = fma(nf, set1(2.12194440e-4f), fma(nf, set1(-0.693359375f), clamped));
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  F y = mul(add(fma(p, mul(r, r), r), set1(1.0f)), pow2(n));
  y = where_less(x, low, set1(0.0f), y);
  y = where_less(high, x, set1(__builtin_inff()), y);
  return where_nan(x, x, y);
}

// eˣ for x ≤ 0 in sums that hold a 1: 2ʳ of the remainder by a polynomial (Cephes exp2f), half the work of exp_f. Below −87 it stays at
// 10⁻³⁸, and the rounding of x·log₂e makes the relative error |x|·10⁻⁷; beside a 1 neither is seen.
static inline F exp_beside_one(F x) {
  const F t = mul(max(x, set1(-87.0f)), set1(1.44269504f));
  const I n = round_i(t);
  const F r = sub(t, to_float(n));
  F p = set1(1.535336188e-4f);
  p = fma(p, r, set1(1.339887440e-3f));
  p = fma(p, r, set1(9.618437357e-3f));
  p = fma(p, r, set1(5.550332471e-2f));
  p = fma(p, r, set1(2.402264791e-1f));
  p = fma(p, r, set1(6.931472028e-1f));
  return mul(fma(p, r, set1(1.0f)), pow2(n));
}

// c[h, 0…V·W) = Σ_{k0 ≤ k < k1} a[h, k] · b[k, ·], one chain of FMAs in the order of k per number.
template <int H, int V>
static inline void product_block(const float* a, long lda, const float* b, long ldb, long k0, long k1, float* c, long ldc) {
  F sum[H][V];
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int v = 0; v < V; ++v) sum[h][v] = set1(0.0f);
  }
  for (long k = k0; k < k1; ++k) {
    F row[V];
    UNROLL for (int v = 0; v < V; ++v) row[v] = load(b + k * ldb + v * W);
    UNROLL for (int h = 0; h < H; ++h) {
      const F x = set1(a[h * lda + k]);
      UNROLL for (int v = 0; v < V; ++v) sum[h][v] = fma(x, row[v], sum[h][v]);
    }
  }
  UNROLL for (int h = 0; h < H; ++h) {
    UNROLL for (int v = 0; v < V; ++v) store(c + h * ldc + v * W, sum[h][v]);
  }
}

template <int H>
static inline void product_tail(const float* a, long lda, const float* b, long ldb, long k0, long k1, float* c, long ldc, int n) {
  F sum[H];
  UNROLL for (int h = 0; h < H; ++h) sum[h] = set1(0.0f);
  for (long k = k0; k < k1; ++k) {
    const F row = load_n(b + k * ldb, n);
    UNROLL for (int h = 0; h < H; ++h) sum[h] = fma(set1(a[h * lda + k]), row, sum[h]);
  }
  UNROLL for (int h = 0; h < H; ++h) store_n(c + h * ldc, sum[h], n);
}

template <int H>
static void product_columns(const float* a, long lda, const float* b, long ldb, long k0, long k1, float* c, long ldc, long n) {
  long j = 0;
  for (; j + kProductVectors * W <= n; j += kProductVectors * W) {
    product_block<H, kProductVectors>(a, lda, b + j, ldb, k0, k1, c + j, ldc);
  }
  for (; j + W <= n; j += W) product_block<H, 1>(a, lda, b + j, ldb, k0, k1, c + j, ldc);
  if (j < n) product_tail<H>(a, lda, b + j, ldb, k0, k1, c + j, ldc, static_cast<int>(n - j));
}

// c[rows, n] = a[rows, k0…k1) · b[k0…k1, n], up to four rows share each load of b.
static void product(const float* a, long lda, long rows, const float* b, long ldb, long k0, long k1, float* c, long ldc, long n) {
  for (long h = 0; h < rows; h += 4, a += 4 * lda, c += 4 * ldc) {
    switch (rows - h) {
      case 1: product_columns<1>(a, lda, b, ldb, k0, k1, c, ldc, n); break;
      case 2: product_columns<2>(a, lda, b, ldb, k0, k1, c, ldc, n); break;
      case 3: product_columns<3>(a, lda, b, ldb, k0, k1, c, ldc, n); break;
      default: product_columns<4>(a, lda, b, ldb, k0, k1, c, ldc, n); break;
    }
  }
}
