// Work that was issued but not run yet. Every operator that touches device memory calls
// flush_deferred() first; while nothing is pending that costs one load.
#pragma once

#include <atomic>

namespace torch_neuronx {

extern std::atomic<bool> g_deferred_pending;
void flush_deferred_slow();

inline void flush_deferred() {
  if (g_deferred_pending.load(std::memory_order_acquire)) flush_deferred_slow();
}

}  // namespace torch_neuronx
