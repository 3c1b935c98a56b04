// Work that was issued but has not run yet: the queues of the streams (queue/queue.h), the deferred
// program of `_foreach_` operators, and what the current stream waits for (device/pending.h).
// Whoever touches device memory calls flush_deferred() first; while nothing is pending that costs
// two loads.
#pragma once

#include <atomic>
#include <cstdint>

#include "queue/queue.h"

namespace torch_neuronx {

inline constexpr uint32_t kDeferredProgram = 1;
inline constexpr uint32_t kPendingStreams = 2;  // some stream has something pending

extern std::atomic<uint32_t> g_deferred_pending;  // of these bits
void run_deferred_slow();
void flush_deferred_slow();

// Runs the deferred program: enough for whoever asks about memory and doesn't touch it.
inline void run_deferred() {
  if (g_deferred_pending.load(std::memory_order_acquire) & kDeferredProgram) run_deferred_slow();
}

// Puts the deferred program into the order of issue, and waits for what the current stream has to
// wait for: enough for whoever enqueues. What an operator does within its own work (queue::Inside)
// was ordered when that was issued.
inline void order_deferred() {
  if (g_deferred_pending.load(std::memory_order_acquire) != 0 && queue::detail::t_inside == 0)
    flush_deferred_slow();
}

// Waits for all of it. Call it without holding a lock; throws what failed.
inline void flush_deferred() {
  order_deferred();
  queue::wait_current();
}

}  // namespace torch_neuronx
