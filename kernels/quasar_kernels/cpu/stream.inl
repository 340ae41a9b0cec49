// Reading memory and nothing else: the yardstick of a step. It reads as the products do, four forward streams with prefetch, so that a
// fraction of it says what the arithmetic costs and not how memory likes to be walked.

static uint64_t stream(const char* data, size_t bytes) {
  const size_t quarter = bytes / 4 / kLine * kLine;
  I sum[4] = {zero(), zero(), zero(), zero()};
  for (size_t i = 0; i < quarter; i += kLine) {
    UNROLL for (int s = 0; s < 4; ++s) {
      const char* line = data + s * quarter + i;
      prefetch(line + kAhead);
      UNROLL for (int v = 0; v < kTile / W; ++v) sum[s] = xor_i(sum[s], load_i(line + v * W * 4));
    }
  }
  uint64_t rest = 0;
  for (size_t i = 4 * quarter; i < bytes; ++i) rest ^= static_cast<uint8_t>(data[i]);
  return rest ^ static_cast<uint32_t>(reduce_xor(xor_i(xor_i(sum[0], sum[1]), xor_i(sum[2], sum[3]))));
}
