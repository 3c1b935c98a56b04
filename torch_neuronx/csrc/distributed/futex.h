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

inline constexpr uint32_t kAnyone = FUTEX_BITSET_MATCH_ANY;

// Sleeps while `word` is `value`, at most until `end`; may return early. `who` are bits by which
// sleepers on one word can be told apart when they are woken.
inline void futex_wait_until(std::atomic<uint32_t>& word, uint32_t value, Clock::time_point end,
                             uint32_t who = kAnyone) {
  // std::chrono::steady_clock is CLOCK_MONOTONIC, by which this call measures.
  const auto since = end.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  const timespec moment{
      static_cast<time_t>(seconds.count()),
      static_cast<long>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count())};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_BITSET, value, &moment, nullptr,
          who);
}

inline void futex_wake(std::atomic<uint32_t>& word, int sleepers = INT_MAX,
                       uint32_t who = kAnyone) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_BITSET, sleepers, nullptr,
          nullptr, who);
}

}  // namespace torch_neuronx::distributed
