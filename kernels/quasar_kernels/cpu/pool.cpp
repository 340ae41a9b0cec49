// See pool.h. One 64-bit word carries (generation, task count, next index), so that a single fetch_add claims a task *of a known region*:
// a worker that wakes late either claims a task of the region now running or sees index ≥ count and goes back to waiting. The region's
// function is read only after a valid claim, and a region ends only when all valid claims are done, so it can never be stale.
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace quasar {
namespace {

constexpr int kIndexBits = 20;
constexpr uint64_t kIndexMask = (1u << kIndexBits) - 1;
constexpr long kMaxTasks = 1 << (kIndexBits - 1);  // half the range: losing claims may run past the count without overflowing into it

uint64_t make_ticket(uint64_t generation, long count) {
  return (generation << (2 * kIndexBits)) | (static_cast<uint64_t>(count) << kIndexBits);
}
uint64_t generation_of(uint64_t ticket) { return ticket >> (2 * kIndexBits); }
long count_of(uint64_t ticket) { return static_cast<long>((ticket >> kIndexBits) & kIndexMask); }
long index_of(uint64_t ticket) { return static_cast<long>(ticket & kIndexMask); }

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
}

class Pool {
 public:
  explicit Pool(int threads) : spin_(std::chrono::microseconds(threads <= available_cores() ? 80 : 2)) {
    const int most = std::min(threads, std::max(64, available_cores()));
    workers_.reserve(static_cast<size_t>(most));
    try {
      for (int i = 1; i < most; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // the system grants no more threads; those that exist suffice
    }
  }

  ~Pool() {
    stop_.store(true);
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  void run(long count, Task task, const void* context) {
    task_ = task;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    const uint64_t generation = generation_of(ticket_.load(std::memory_order_relaxed)) + 1;
    ticket_.store(make_ticket(generation & 0xffffff, count), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> lock(sleep_mutex_); }
      wake_.notify_all();
    }
    claim_all();
    for (int spins = 0; done_.load(std::memory_order_acquire) < count; ++spins) {
      if (spins < 2000) {
        relax();
      } else {
        sched_yield();  // the thread we wait for may need this very core
      }
    }
  }

 private:
  // Runs tasks until none is left; returns the generation that ran out.
  uint64_t claim_all() {
    for (;;) {
      const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
      if (index_of(ticket) >= count_of(ticket)) return generation_of(ticket);
      task_(context_, index_of(ticket));
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work() {
    uint64_t seen = 0;
    for (;;) {
      if (!await_new(seen)) return;
      seen = claim_all();
    }
  }

  // Spins, then parks, until a generation other than `seen` is published; false when the pool stops.
  bool await_new(uint64_t seen) {
    const auto news = [&] { return stop_.load() || generation_of(ticket_.load(std::memory_order_seq_cst)) != seen; };
    const auto start = std::chrono::steady_clock::now();
    while (!news()) {
      for (int i = 0; i < 16 && generation_of(ticket_.load(std::memory_order_acquire)) == seen; ++i) relax();
      if (std::chrono::steady_clock::now() - start < spin_) continue;
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, news);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    return !stop_.load();
  }

  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<long> done_{0};
  alignas(64) Task task_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  const std::chrono::steady_clock::duration spin_;
  std::vector<std::thread> workers_;
};

// Held by whoever uses or replaces the pool. Leaked on purpose: workers may outlive static destructors, and a forked child, whose workers do
// not exist and whose lock may be held by a thread that does not exist either, starts over with fresh ones.
struct State {
  std::mutex busy;
  Pool* pool = nullptr;
};
State* state = new State;
std::atomic<int> threads{0};

const int fork_handler = pthread_atfork(nullptr, nullptr, [] { state = new State; });

}  // namespace

int get_threads() {
  int count = threads.load();
  if (count == 0) threads.store(count = available_cores());
  return count;
}

void set_threads(int count) {
  std::lock_guard<std::mutex> lock(state->busy);
  delete state->pool;
  state->pool = nullptr;
  threads.store(count);
}

void run_tasks(long count, Task task, const void* context) {
  std::unique_lock<std::mutex> lock(state->busy, std::try_to_lock);
  if (!lock.owns_lock() || get_threads() == 1 || count > kMaxTasks) {
    for (long i = 0; i < count; ++i) task(context, i);
    return;
  }
  if (state->pool == nullptr) state->pool = new Pool(get_threads());
  state->pool->run(count, task, context);
}

}  // namespace quasar
