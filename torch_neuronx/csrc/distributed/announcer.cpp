#include "distributed/announcer.h"

#include <pthread.h>

#include <utility>

namespace torch_neuronx::distributed {

Announcer& Announcer::instance() {
  static auto& announcer = *new Announcer;  // groups outlive statics
  return announcer;
}

void Announcer::post(std::function<void()> call) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      waiting_.push_back(std::move(call));
      call = nullptr;
      if (!thread_.joinable()) {
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), "neuron-announce");
      }
    }
  }
  changed_.notify_all();
  if (call) call();
}

void Announcer::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (thread_.get_id() == std::this_thread::get_id()) return;
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

void Announcer::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Announcer::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !waiting_.empty() || stopping_; });
    if (waiting_.empty()) return;
    auto call = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    call();
    call = nullptr;  // frees what may run code of anybody's
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace torch_neuronx::distributed
