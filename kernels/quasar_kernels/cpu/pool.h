// A small thread pool: N tasks, claimed one at a time from an atomic counter.
//
// Why not OpenMP or torch's pool: a decoder step is some 200 parallel regions of 5–100 µs. Static splitting waits for the slowest thread in
// each, so one busy core stalls every region; here a late thread simply claims fewer tasks, and a thread that never wakes is never waited
// for. Workers spin for a moment after a region (the next one usually follows at once), then park.
//
// Results never depend on the number of threads: a task is a fixed piece of the output, only who runs it varies.
// What is lost: a worker that is descheduled *inside* a task is waited for.
#pragma once

namespace quasar {

using Task = void (*)(const void* context, long index);

// Runs task(context, 0 … count−1) and returns when all are done. A second caller at the same time runs its tasks alone, serially.
void run_tasks(long count, Task task, const void* context);

// Number of threads that share a region, the caller included: 1 to kMostThreads. Setting it joins the old workers; new ones start with the
// next region, at most 64 or one per core, and fewer where the system refuses more: whoever is there claims the tasks.
constexpr int kMostThreads = 1024;
void set_threads(int count);
int get_threads();

template <class Function>
void parallel(long count, const Function& function) {
  if (count == 1) {
    function(0);
    return;
  }
  run_tasks(count, [](const void* f, long index) { (*static_cast<const Function*>(f))(index); }, &function);
}

}  // namespace quasar
