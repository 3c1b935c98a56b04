// The completion hook of a group: a function of the user's that is told of every collective and
// message which has ended well.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace torch_neuronx::distributed {

class Observer {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit Observer(Hook hook) : hook_(std::move(hook)) {}

  // One operation more will end.
  void expect() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++expected_;
  }

  // One has ended; null if it failed, which its waiters are told and the hook is not. What the
  // hook throws must not end a thread of ours: `wait` throws it.
  void ended(const std::shared_ptr<c10d::WorkInfo>& info) noexcept {
    std::exception_ptr error;
    try {
      if (info != nullptr) hook_(info);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = error;
    if (--expected_ == 0) changed_.notify_all();
  }

  // Until the hook was told of all; throws the first error of the hook, once.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return expected_ == 0; });
    if (auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t expected_ = 0;
  std::exception_ptr error_;
};

}  // namespace torch_neuronx::distributed
