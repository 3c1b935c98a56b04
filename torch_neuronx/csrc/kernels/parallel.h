// Splits work over ATen's thread pool in small chunks that threads fetch as they become free.
//
// A static split (what at::parallel_for does on its own) leaves everybody waiting for a thread that
// lost its core; on a shared machine that costs several times the kernel itself.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace torch_neuronx::kernels {

/// Calls `body(begin, end)` for consecutive ranges of at most `chunk` items that cover [0, n).
/// The ranges depend only on n and chunk, never on the number of threads. Runs on the calling
/// thread when there is a single chunk, one thread, or a parallel region around the call.
template <class Body>
void parallel_chunks(int64_t n, int64_t chunk, const Body& body) {
  const int64_t chunks = (n + chunk - 1) / chunk;
  if (chunks <= 0) {
    return;
  }
  const auto run = [&](int64_t index) { body(index * chunk, std::min(n, (index + 1) * chunk)); };
  if (chunks == 1 || at::get_num_threads() == 1 || at::in_parallel_region()) {
    for (int64_t index = 0; index < chunks; ++index) {
      run(index);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min<int64_t>(chunks, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      run(index);
    }
  });
}

}  // namespace torch_neuronx::kernels
