// Working memory of the calling thread that outlives a call: grows to the largest request, so a decoder step allocates nothing.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

namespace quasar {

enum Slot {
  kRowWork,
  kRowFloats,
  kActivations,
  kStates,
  kDone,
  kAttendWork,
  kViews,
  kPaths,
  kStepFloats,
  kStepRounded,
  kStepScales,
  kStepWide,
  kStepQueries,
  kSlots
};

inline void* scratch(Slot slot, size_t bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<void, Free> memory[kSlots];
  thread_local size_t sizes[kSlots] = {};
  if (sizes[slot] < bytes) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    memory[slot].reset(std::aligned_alloc(64, rounded));
    if (!memory[slot]) throw std::bad_alloc();
    sizes[slot] = rounded;
  }
  return memory[slot].get();
}

template <class T>
T* scratch_of(Slot slot, long count) {
  return static_cast<T*>(scratch(slot, sizeof(T) * static_cast<size_t>(count)));
}

}  // namespace quasar
