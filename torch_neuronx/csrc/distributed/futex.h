// Sleeping on a word of memory that several processes share, and giving up after a while.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace torch_neuronx::distributed {

using Clock = std::chrono::steady_clock;

// Sleeps while `word` is `value`, at most for `limit`; may return early.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value,
                       std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec span{static_cast<time_t>(seconds.count()),
                      static_cast<long>((limit - seconds).count())};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &span, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word, int sleepers = INT_MAX) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
}

}  // namespace torch_neuronx::distributed
