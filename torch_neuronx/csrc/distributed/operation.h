// One collective under way: what is to be run, by whom, and how others learn of its end.
#pragma once

#include <ATen/core/ivalue.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "device/pending.h"
#include "device/profiler.h"

namespace torch_neuronx::distributed {

class Operation final : public Completion, public std::enable_shared_from_this<Operation> {
 public:
  Operation(std::function<void()> body, std::vector<at::Tensor> results,
            std::vector<at::Tensor> kept, c10::DeviceIndex device,
            std::shared_ptr<Completion> before = nullptr);

  // Runs the body in this thread, after what the issuing stream had to wait for and `before`.
  // `announce` is to follow.
  void run() noexcept;
  // Has the Announcer call what waits for the end, and lets memory go: code of the user's.
  void announce() noexcept;
  // For operations that run elsewhere (transfers between two ranks).
  void finish(std::exception_ptr error, int source = -1) noexcept;
  // Who waits for it from now on does its work meanwhile, with this, until a point in time.
  using Attend = std::function<void(std::chrono::steady_clock::time_point)>;
  void attended_by(Attend attend);

  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  void wait() override;
  std::chrono::steady_clock::time_point finished_at() const noexcept override;
  // False when it was not done after `timeout`.
  bool wait_for(std::chrono::milliseconds timeout);
  std::exception_ptr error() const;
  // Calls back when the operation is announced, with what went wrong; at once if that was before,
  // and otherwise from the Announcer's thread, so that who is called may wait for other operations.
  void when_done(std::function<void(std::exception_ptr)> callback);

  // To be called before it runs.
  void profile(std::unique_ptr<CommunicationActivity> activity) { activity_ = std::move(activity); }

  // How much it moves, for the tools; to be called before it runs.
  void moves(size_t bytes) { bytes_ = bytes; }

  const std::vector<at::Tensor>& results() const { return results_; }
  c10::DeviceIndex device() const { return device_; }
  int source() const { return source_; }
  double seconds() const;  // that it took

 private:
  void settle(std::exception_ptr error, int source) noexcept;

  // Helps, if that is possible by now.
  void attend(std::chrono::steady_clock::time_point until);

  std::function<void()> body_;
  Attend attend_;
  std::vector<at::Tensor> results_;
  std::vector<at::Tensor> kept_;  // memory that must live until the end
  std::vector<std::shared_ptr<Completion>> before_;
  std::unique_ptr<CommunicationActivity> activity_;  // when somebody profiles
  const c10::DeviceIndex device_;
  size_t bytes_ = 0;
  int source_ = -1;
  // A transfer may be done before anybody can say that it started: it starts when it is made.
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point finished_{};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_{false};
  bool announced_ = false;
  std::exception_ptr error_;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

// What PyTorch sees of one operation, or of several that were issued together.
class NeuronWork final : public c10d::Work {
 public:
  NeuronWork(int rank, c10d::OpType type, std::vector<std::shared_ptr<Operation>> operations,
             uint64_t sequence);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  // On the default stream, waits; on another one, makes what is issued to it wait. Where calls are
  // enqueued it is the core that waits, but for barriers and for a message from anybody. With a
  // timeout it always waits, and throws when it has passed.
  bool wait(std::chrono::milliseconds timeout) override;
  // Waits, whatever the current stream is.
  void join();
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  void abort() override;
  // As on other devices, the future is there at once and stands for its place on a stream: who
  // waits for it waits on its own stream, and callbacks run now, on a stream that waits. So
  // collectives that callbacks issue come in the same order in all ranks.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // This one is set when the operations have really ended, by the Announcer.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  std::vector<std::shared_ptr<Operation>> operations_;
  const uint64_t sequence_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The communication thread of a group: operations one at a time, in the order of their issue.
class Queue {
 public:
  ~Queue() { stop(); }
  void push(std::shared_ptr<Operation> operation);
  // Runs the operation in the caller's thread if nothing else is queued or running.
  bool try_run_here(Operation& operation);
  // Waits until all that was pushed has run.
  void drain();
  bool idle();
  // Runs what is queued, and ends the thread. Nothing may be pushed after it.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> waiting_;
  bool busy_ = false;  // an operation runs, in whatever thread
  bool stopping_ = false;
  std::thread thread_;  // started by the first push
};

}  // namespace torch_neuronx::distributed
