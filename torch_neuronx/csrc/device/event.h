// An event: a time stamp and what its stream had pending when it was recorded. It is complete when
// all of that is done, and its time is then that of the last to finish.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <mutex>

#include "device/pending.h"

namespace torch_neuronx {

class Event {
 public:
  using Clock = std::chrono::steady_clock;

  void record(c10::DeviceIndex core, bool timing, Completions pending);
  // What is still open, and what failed.
  Completions pending();
  bool done();
  // Throws what failed, to everybody who waits.
  void wait();
  // Throws unless it was recorded with timing and is done.
  Clock::time_point time();
  // Of the stream that it was recorded on last.
  c10::DeviceIndex core();

 private:
  std::mutex mutex_;  // guards all below; no completion is called under it
  c10::DeviceIndex core_ = -1;
  bool timing_ = false;
  uint64_t records_ = 0;
  Clock::time_point when_;
  Completions pending_;
  bool settled_ = true;  // `pending_` holds failures only, and `when_` is final
};

}  // namespace torch_neuronx
