// See dispatch.h. The fastest instruction set of this CPU is used if it agrees with plain C++ on a few small problems: INT8 and rounding
// exactly, FP32 sums to a tolerance. That takes about a millisecond and turns a miscompiled or misdetected kernel into a warning.
#include "dispatch.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "ops.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace quasar {
namespace {

const Kernels* current = &scalar_kernels;

class Numbers {  // a small fixed generator: the check must not vary from run to run
 public:
  uint32_t next() { return (state_ = state_ * 1664525u + 1013904223u) >> 8; }
  float real() { return static_cast<float>(next()) / static_cast<float>(1 << 23) - 1.0f; }
  std::vector<float> reals(size_t n) {
    std::vector<float> x(n);
    for (float& v : x) v = real();
    return x;
  }
  std::vector<int8_t> bytes(size_t n) {
    std::vector<int8_t> x(n);
    for (int8_t& v : x) v = next() % 3 ? static_cast<int8_t>(next() % 255 - 127) : next() % 2 ? 127 : -127;
    return x;
  }

 private:
  uint32_t state_ = 1;
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e-5f + 1e-4f * std::fabs(b[i]))) return false;
  }
  return true;
}

constexpr long kRows = 5, kOutputs = 83, kInputs = 67, kSize = 20, kHeads = 6, kGroups = 2, kPositions = 90;
constexpr Transform kNone = {nullptr, nullptr, nullptr, 0};

// Everything a table computes on the fixed problem; `exact` must match scalar to the bit, `loose` nearly.
struct Answers {
  std::vector<float> exact, loose;
  std::vector<int8_t> q;
};

std::vector<float> linear_answer(const Kernels& table, Numbers& numbers, bool int8) {
  std::vector<float> y(kRows * kOutputs), scale = numbers.reals(kRows), wscale = numbers.reals(kOutputs), bias = numbers.reals(kOutputs),
                     residual = numbers.reals(kRows * kOutputs);
  Linear job = {nullptr, 0, nullptr, kRows, kOutputs, kInputs, scale.data(), wscale.data(), bias.data(), residual.data(), y.data()};
  const long tiles = ceil_div(kOutputs, kTile);
  if (int8) {
    const std::vector<int8_t> w = numbers.bytes(kOutputs * kInputs), q = numbers.bytes(kRows * kInputs);
    std::vector<char> packed(packed_int8_bytes(kOutputs, kInputs));
    pack_int8(w.data(), kOutputs, kInputs, packed.data());
    job.x_stride = ceil_div(kInputs, 4) * 4;
    std::vector<uint8_t> x(static_cast<size_t>(kRows * job.x_stride));
    for (long row = 0; row < kRows; ++row) table.int8_prepare(q.data() + row * kInputs, kInputs, x.data() + row * job.x_stride);
    job.x = x.data();
    job.weight = packed.data();
    table.int8_tiles(job, 0, kRows, 0, tiles);
    return y;
  }
  const std::vector<float> x = numbers.reals(kRows * kInputs), wide = numbers.reals(kOutputs * kInputs);
  std::vector<uint16_t> w(wide.size());
  for (size_t i = 0; i < w.size(); ++i) {
    uint32_t word;
    std::memcpy(&word, &wide[i], 4);
    w[i] = static_cast<uint16_t>(word >> 16);
  }
  std::vector<char> packed(packed_bf16_bytes(kOutputs, kInputs));
  pack_bf16(w.data(), kOutputs, kInputs, packed.data());
  job.x = x.data();
  job.x_stride = kInputs;
  job.weight = packed.data();
  table.bf16_tiles(job, 0, kRows, 0, tiles);
  return y;
}

std::vector<float> attention_answer(const Kernels& table, Numbers& numbers) {
  const std::vector<float> q = numbers.reals(kHeads * kSize), keys = numbers.reals(kGroups * kPositions * kSize),
                           values = numbers.reals(kGroups * kPositions * kSize);
  const long per = kHeads / kGroups, floats = state_floats(kSize);
  const View view = {3, kPositions - 1, nullptr};
  std::vector<float> out(kHeads * kSize), work(static_cast<size_t>(attend_work_floats(kSize, per)));
  const Attend job = {q.data(), 1, kHeads, kGroups, kSize, keys.data(), values.data(), kPositions * kSize, kPositions * kSize, &view, 0,
                      out.data()};
  for (long group = 0; group < kGroups; ++group) {
    std::vector<float> total(static_cast<size_t>(per * floats)), part(total.size());
    table.attend_block(job, group, 0, 1, 0, total.data(), work.data());
    table.attend_block(job, group, 0, 1, kBlock, part.data(), work.data());
    for (long h = 0; h < per; ++h) {
      table.attend_merge(total.data() + h * floats, part.data() + h * floats, kSize);
      table.attend_finish(total.data() + h * floats, kSize, out.data() + (group * per + h) * kSize);
    }
  }
  return out;
}

std::vector<float> row_answer(const Kernels& table, Numbers& numbers) {
  const std::vector<float> x = numbers.reals(2 * kInputs), w = numbers.reals(kInputs);
  std::vector<float> y(2 * kInputs);
  table.rmsnorm_row(x.data(), w.data(), 1e-5f, kInputs, y.data());
  table.silu_mul_row(x.data(), kInputs, y.data() + kInputs);
  return y;
}

// Sides and row lengths that reach every way through the butterflies: inside a vector, on registers, and once more through memory.
std::vector<float> rotate_answer(const Kernels& table, Numbers& numbers) {
  std::vector<float> y;
  for (const auto& [side, n] : {std::pair<long, long>{7, 1}, {5, 2}, {3, 4}, {6, 16}, {1, 64}, {3, 512}}) {
    const std::vector<float> x = numbers.reals(side * n), rotation = numbers.reals(side * side);
    std::vector<float> work(x.size()), turned(x.size());
    table.rotate_row(x.data(), rotation.data(), side, side * n, work.data(), turned.data());
    y.insert(y.end(), turned.begin(), turned.end());
  }
  return y;
}

std::vector<float> top_answer(const Kernels& table, Numbers& numbers) {
  constexpr long kMost = 5;
  const std::vector<float> x = numbers.reals(kInputs);
  std::vector<float> y(2 * kMost + 2);
  int32_t ids[kMost];
  table.top_part(x.data(), kInputs, 0, kMost, y.data(), ids, &y[2 * kMost]);
  for (long i = 0; i < kMost; ++i) y[kMost + i] = static_cast<float>(ids[i]);
  return y;
}

std::vector<float> quantize_answer(const Kernels& table, Numbers& numbers) {
  const std::vector<float> x = numbers.reals(kInputs);
  std::vector<float> work(2 * kInputs), y(kInputs + 1);
  std::vector<int8_t> q(kInputs);
  table.quantize_row(x.data(), kNone, kInputs, work.data(), q.data(), &y[kInputs]);
  for (long i = 0; i < kInputs; ++i) y[i] = q[i];
  return y;
}

template <class Answer>
bool agrees(const Kernels& table, bool exact, Answer answer) {
  Numbers ours, theirs;
  const std::vector<float> a = answer(table, ours), b = answer(scalar_kernels, theirs);
  return exact ? std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 : close(a, b);
}

}  // namespace

const Kernels& kernels() { return *current; }

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
      tables.push_back(&avx512_kernels);
    }
    tables.push_back(&avx2_kernels);
  }
#elif defined(__aarch64__)
#if defined(__linux__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) tables.push_back(&neon_kernels);
#else
  tables.push_back(&neon_kernels);  // every Apple core has it
#endif
#endif
  tables.push_back(&scalar_kernels);
  return tables;
}

std::string disagreement(const Kernels& table) {
  if (!agrees(table, true, [](const Kernels& t, Numbers& n) { return linear_answer(t, n, true); })) return "linear_w8a8";
  if (!agrees(table, true, quantize_answer)) return "quantize_rows";
  if (!agrees(table, true, rotate_answer)) return "rotate";
  if (!agrees(table, false, [](const Kernels& t, Numbers& n) { return linear_answer(t, n, false); })) return "linear_bf16";
  if (!agrees(table, false, row_answer)) return "rmsnorm or silu_mul";
  if (!agrees(table, false, attention_answer)) return "attend";
  if (!agrees(table, false, top_answer)) return "top_rows";
  return "";
}

bool use(const std::string& name) {
  for (const Kernels* table : supported()) {
    if (name == table->name) {
      current = table;
      return true;
    }
  }
  return false;
}

std::string choose(const char* wanted) {
  std::string refused;
  bool known = wanted == nullptr || *wanted == '\0';
  for (const Kernels* table : supported()) {
    if (!known && std::strcmp(wanted, table->name) != 0) continue;
    known = true;  // from the wanted one on, fall through to the next when it is refused
    const std::string op = disagreement(*table);
    if (op.empty()) {
      current = table;
      return refused;
    }
    refused += std::string(table->name) + " disagrees with plain C++ in " + op + "; ";
  }
  if (!known) {
    refused = "QUASAR_CPU_ISA=" + std::string(wanted) + " is not available on this CPU; ";
    refused += choose(nullptr);
  }
  return refused;
}

}  // namespace quasar
