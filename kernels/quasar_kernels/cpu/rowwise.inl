// One row at a time: normalise, gate, quantize, rotate-and-append, and the largest numbers of a part of a row.
//
// Quantization is exact to the reference: IEEE division and rounding half to even, the maximum taken on the bits of |x|, where infinity and
// NaN are larger than every number and so cannot hide.

static void rmsnorm_row(const float* x, const float* w, float eps, long k, float* y) {
  F sum[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int lane = 0;
  for (long i = 0; i < k; i += W, lane = (lane + 1) & 3) {
    const F v = load_up_to(x + i, k - i);
    sum[lane] = fma(v, v, sum[lane]);
  }
  const float squares = reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  const F inverse = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(k) + eps));
  for (long i = 0; i < k; i += W) {
    const F v = mul(mul(load_up_to(x + i, k - i), inverse), load_up_to(w + i, k - i));
    store_up_to(y + i, v, k - i);
  }
}

static void silu_mul_row(const float* gate_up, long k, float* y) {
  for (long i = 0; i < k; i += W) {
    const F gate = load_up_to(gate_up + i, k - i);
    const F up = load_up_to(gate_up + k + i, k - i);
    const F open = div(gate, add(set1(1.0f), exp_f(sub(set1(0.0f), gate))));
    store_up_to(y + i, mul(open, up), k - i);
  }
}

// The result is x itself or lies in work[0…k). work: 2·k floats; x may be work[0…k).
static const float* transform_row(const float* x, const Transform& transform, long k, float* work) {
  if (transform.shift || transform.inv_smooth) {
    for (long i = 0; i < k; i += W) {
      F v = load_up_to(x + i, k - i);
      if (transform.shift) v = sub(v, load_up_to(transform.shift + i, k - i));
      if (transform.inv_smooth) v = mul(v, load_up_to(transform.inv_smooth + i, k - i));
      store_up_to(work + i, v, k - i);
    }
    x = work;
  }
  if (transform.rotation) {
    rotate_row(x, transform.rotation, transform.side, k, work + k, work);
    x = work;
  }
  return x;
}

static void quantize_row(const float* x, const Transform& transform, long k, float* work, int8_t* q, float* scale) {
  x = transform_row(x, transform, k, work);
  I top_bits = zero();
  for (long i = 0; i < k; i += W) top_bits = max_i(top_bits, abs_bits(load_up_to(x + i, k - i)));
  const int32_t top_word = reduce_max_i(top_bits);
  float top;
  __builtin_memcpy(&top, &top_word, 4);
  if (top_word >= 0x7f800000) {  // infinity or NaN somewhere
    *scale = __builtin_nanf("");
    __builtin_memset(q, 0, k);
    return;
  }
  *scale = top == 0.0f ? 1.0f : top / 127.0f;
  const F step = set1(*scale);
  for (long i = 0; i < k; i += W) {
    F v = div(load_up_to(x + i, k - i), step);
    v = where_nan(v, set1(0.0f), v);  // 0/0, when top / 127 underflows
    const I rounded = round_i(min(max(v, set1(-127.0f)), set1(127.0f)));
    if (k - i >= W) {
      store_i8(q + i, rounded);
    } else {
      int8_t lanes[W > 8 ? W : 8];
      store_i8(lanes, rounded);
      __builtin_memcpy(q + i, lanes, k - i);
    }
  }
}

static void int8_prepare(const int8_t* q, long k, uint8_t* out) {
  constexpr uint8_t kOffset = kUnsignedActivations ? 0x80 : 0;
  const long padded = ceil_div(k, 4) * 4;
  for (long i = 0; i < k; ++i) out[i] = static_cast<uint8_t>(q[i]) ^ kOffset;
  for (long i = k; i < padded; ++i) out[i] = kOffset;
}

static void rotate_head(const float* x, const float* norm, float eps, const float* cos, const float* sin, long size, float* y) {
  if (norm) {
    rmsnorm_row(x, norm, eps, size, y);
    x = y;
  }
  const long half = size / 2;
  for (long i = 0; i < half; i += W) {
    const long left = half - i;
    const F first = load_up_to(x + i, left), second = load_up_to(x + half + i, left);
    const F c = load_up_to(cos + i, left), s = load_up_to(sin + i, left);
    store_up_to(y + i, sub(mul(first, c), mul(second, s)), left);
    store_up_to(y + half + i, add(mul(second, c), mul(first, s)), left);
  }
}

static void rope_row(const Rope& job, long row) {
  const long size = job.size, half = size / 2;
  const float* x = job.qkv + row * (job.heads + 2 * job.groups) * size;
  const float *cos = job.cos + row * half, *sin = job.sin + row * half;
  float* q = job.q + row * job.heads * size;
  for (long h = 0; h < job.heads; ++h, x += size, q += size) rotate_head(x, job.q_norm, job.eps, cos, sin, size, q);
  const long position = (job.start + row) * size;
  for (long g = 0; g < job.groups; ++g, x += size) {
    rotate_head(x, job.k_norm, job.eps, cos, sin, size, job.k_cache + g * job.k_stride + position);
  }
  for (long g = 0; g < job.groups; ++g, x += size) {
    __builtin_memcpy(job.v_cache + g * job.v_stride + position, x, sizeof(float) * size);
  }
}

// Takes (x, id) into the `count` ≤ k largest so far, descending, equal ones in the order of arrival; returns the new count.
static inline long insert_top(float x, int32_t id, long count, long k, float* values, int32_t* ids) {
  if (count == k) {
    if (!(x > values[k - 1])) return count;
    --count;
  }
  long at = count;
  for (; at > 0 && values[at - 1] < x; --at) {
    values[at] = values[at - 1];
    ids[at] = ids[at - 1];
  }
  values[at] = x;
  ids[at] = id;
  return count + 1;
}

// The k largest of x[0…n) (all when n < k) with ids from `id0` on, and state = (maximum, Σ exp(x − maximum)). A NaN makes the sum NaN.
// The first pass leaves the maxima of 16 interleaved parts; the k-th largest of them cannot exceed the k-th largest of all, so the second
// pass, which exponentiates anyway, looks only at the few numbers that reach it.
static void top_part(const float* x, long n, int32_t id0, long k, float* values, int32_t* ids, float* state) {
  constexpr int V = kTile / W;
  F tops[2 * V];  // two chains of maxima, for the latency of one would set the pace
  UNROLL for (int v = 0; v < 2 * V; ++v) tops[v] = set1(-__builtin_inff());
  const long whole = n / (2 * kTile) * (2 * kTile);
  for (long i = 0; i < whole; i += 2 * kTile) {
    UNROLL for (int v = 0; v < 2 * V; ++v) tops[v] = max(tops[v], load(x + i + v * W));
  }
  UNROLL for (int v = 0; v < V; ++v) tops[v] = max(tops[v], tops[V + v]);
  float parts[kTile], ordered[kTile];
  UNROLL for (int v = 0; v < V; ++v) store(parts + v * W, tops[v]);
  int32_t places[kTile];
  for (long i = 0, count = 0; i < kTile; ++i) count = insert_top(parts[i], 0, count, kTile, ordered, places);
  float top = ordered[0];
  for (long i = whole; i < n; ++i) top = x[i] > top ? x[i] : top;

  float enough = k <= kTile && whole > 0 ? ordered[k - 1] : -__builtin_inff();
  const F shift = set1(top == -__builtin_inff() ? 0.0f : top);
  float total = 0.0f;
  bool nan = false;
  long count = 0;
  for (long i = 0; i < n;) {
    F sum = set1(0.0f);  // of 256 numbers, for a longer chain would round more
    for (const long end = i + 256 < n ? i + 256 : n; i < end; i += W) {
      const long left = n - i;
      const F v = load_up_to(x + i, left);
      unsigned reached = not_less(v, set1(enough));
      F e = exp_beside_one(sub(v, shift));
      if (left < W) {
        reached &= (1u << left) - 1;
        float lanes[W];
        store(lanes, e);
        e = load_n(lanes, static_cast<int>(left));
      }
      sum = add(sum, e);
      for (; reached; reached &= reached - 1) {
        const long at = i + __builtin_ctz(reached);
        nan |= x[at] != x[at];
        count = insert_top(x[at], id0 + static_cast<int32_t>(at), count, k, values, ids);
      }
      if (count == k && values[k - 1] > enough) enough = values[k - 1];
    }
    total += reduce_add(sum);
  }
  state[0] = top;
  state[1] = nan ? __builtin_nanf("") : total;
}
