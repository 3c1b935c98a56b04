// The queues of a NeuronCore, one for each stream that something was enqueued on, each with the
// thread that does its work in order.
//
// Streams go on without each other: the thread of one may wait for a collective while others work.
// A core does one piece of work at a time, so a thread that works has the core's turn.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "device/stream.h"
#include "queue/queue.h"

namespace torch_neuronx::queue {

class Core;

class StreamQueue {
  using Clock = std::chrono::steady_clock;

 public:
  // How far Python may run ahead. What waits takes little memory: a freed block is free at once.
  static constexpr uint64_t kCapacity = 1024;

  StreamQueue(Core& core, int slot);

  // False, and `work` untouched, if the queue is closed.
  bool push(std::unique_ptr<Work>& work);
  bool busy() const {
    return done_.load(std::memory_order_acquire) != issued_.load(std::memory_order_acquire);
  }
  // Positions: how many pieces of work were ever issued, and whether so many are done.
  uint64_t issued() const { return issued_.load(std::memory_order_acquire); }
  bool done(uint64_t position) const { return done_.load(std::memory_order_acquire) >= position; }
  void wait_until(uint64_t position);
  // What is enqueued now is not run.
  void skip_issued() { skipped_.store(issued(), std::memory_order_release); }
  void close();
  Core& core() const { return core_; }

 private:
  class Front;

  void work();
  void sleep_until_issued(uint64_t position);
  size_t run_in_turn(uint64_t position, RegionOutcome& region, Clock::duration& took);
  RegionOutcome run_region(uint64_t position);
  void write_down(const std::shared_ptr<Took>& where, Clock::duration took) const;
  void run(Work& work, uint64_t position);
  void fail(std::exception_ptr failure, const Work& work);
  bool skips(uint64_t position) const;

  Core& core_;
  const int slot_;
  std::mutex issue_;
  std::array<std::unique_ptr<Work>, kCapacity> ring_;
  // Of the positions many threads write the first and one the second, so they stand apart.
  alignas(64) std::atomic<uint64_t> issued_{0};
  std::atomic<bool> asleep_{false};
  alignas(64) std::atomic<uint64_t> done_{0};
  std::atomic<int> waiting_{0};  // threads that sleep until work is done
  std::atomic<uint64_t> skipped_{0};
  std::atomic<bool> closed_{false};
  std::thread thread_;  // last: it uses all of the above
};

class Core {
 public:
  void set_index(c10::DeviceIndex index) { index_ = index; }
  c10::DeviceIndex index() const { return index_; }

  // Null if nothing was ever enqueued on the stream.
  StreamQueue* queue(int slot) const {
    return queues_[static_cast<size_t>(slot)].load(std::memory_order_acquire);
  }
  StreamQueue& start(int slot);
  template <class Fn>
  void for_each_queue(Fn fn) const {
    for (const auto& each : queues_)
      if (StreamQueue* queue = each.load(std::memory_order_acquire)) fn(*queue);
  }
  bool busy() const;

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Nothing of this core runs from now on, until somebody is told.
  void fail(std::exception_ptr failure);
  // Throws what failed, which is still to be told.
  void throw_failure();
  // Throws what failed, and forgets it; what is enqueued now, behind it, will not run.
  void tell();

  std::mutex turn;  // of the thread that works
  // Threads that wait for work of any stream: one that has the turn and no work holds up all.
  std::atomic<int> wanted{0};

 private:
  c10::DeviceIndex index_ = -1;
  std::array<std::atomic<StreamQueue*>, kStreams> queues_{};
  std::mutex start_;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};
};

// The core whose thread this is; null if it is none.
Core* core_of_thread();
// Those of later calls of StreamQueue::run_region.
RegionRunner region_runner();

}  // namespace torch_neuronx::queue
