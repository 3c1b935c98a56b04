#include "distributed/operation.h"

#include <c10/core/DeviceGuard.h>
#include <pthread.h>

#include "device/state.h"
#include "device/stream.h"
#include "distributed/error.h"

namespace torch_neuronx::distributed {

Operation::Operation(std::function<void()> body, std::vector<at::Tensor> results,
                     std::vector<at::Tensor> kept, c10::DeviceIndex device)
    : body_(std::move(body)),
      results_(std::move(results)),
      kept_(std::move(kept)),
      before_(pending_of(current_stream(device))),
      device_(device) {}

void Operation::run() noexcept {
  std::exception_ptr error;
  try {
    for (const auto& completion : before_) completion->wait();
    started_ = std::chrono::steady_clock::now();
    if (activity_) activity_->begin();
    body_();
  } catch (...) {
    error = std::current_exception();
  }
  if (activity_) activity_->end();
  finish(error);
}

void Operation::finish(std::exception_ptr error, int source) noexcept {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  // Released after the end is known and without the lock: their destructors run Python code.
  std::vector<at::Tensor> kept;
  std::vector<std::shared_ptr<Completion>> before;
  std::function<void()> body;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ = std::chrono::steady_clock::now();
    error_ = error;
    source_ = source;
    kept.swap(kept_);
    before.swap(before_);
    body.swap(body_);
    future = future_;
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (future == nullptr) return;
  if (error) {
    future->setErrorIfNeeded(error);
  } else {
    future->markCompleted(c10::IValue(results_));
  }
}

void Operation::attended_by(std::function<void(std::chrono::steady_clock::time_point)> attend) {
  started_ = std::chrono::steady_clock::now();
  attend_ = std::move(attend);
}

void Operation::wait() {
  if (attend_ && !done()) attend_(std::chrono::steady_clock::time_point::max());
  if (!done()) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done(); });
  }
  if (error_) std::rethrow_exception(error_);
}

bool Operation::wait_for(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  if (attend_ && !done()) attend_(until);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, until, [&] { return done(); })) return false;
  }
  wait();
  return true;
}

std::exception_ptr Operation::error() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

std::chrono::steady_clock::time_point Operation::finished_at() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

double Operation::seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::chrono::duration<double>(finished_ - started_).count();
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{c10::Device(kNeuron, device_)});
    if (!done()) return future;
  }
  if (error_) {
    future->setErrorIfNeeded(error_);
  } else {
    future->markCompleted(c10::IValue(results_));
  }
  return future;
}

NeuronWork::NeuronWork(int rank, c10d::OpType type,
                       std::vector<std::shared_ptr<Operation>> operations, uint64_t sequence)
    : Work(rank, type), operations_(std::move(operations)), sequence_(sequence) {}

bool NeuronWork::isCompleted() {
  for (const auto& operation : operations_)
    if (!operation->done()) return false;
  return true;
}

bool NeuronWork::isSuccess() const { return exception() == nullptr; }

std::exception_ptr NeuronWork::exception() const {
  for (const auto& operation : operations_)
    if (auto error = operation->error()) return error;
  return nullptr;
}

int NeuronWork::sourceRank() const { return operations_.at(0)->source(); }

std::vector<at::Tensor> NeuronWork::result() {
  std::vector<at::Tensor> results;
  for (const auto& operation : operations_)
    results.insert(results.end(), operation->results().begin(), operation->results().end());
  return results;
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) {
    synchronize();
    return true;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto& operation : operations_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (!operation->wait_for(std::max(left, std::chrono::milliseconds(0))))
      fail(kTimeout, "the work was not done after " + std::to_string(timeout.count()) + " ms");
  }
  return true;
}

void NeuronWork::synchronize() {
  for (const auto& operation : operations_)
    add_pending(current_stream(operation->device()), operation);
}

void NeuronWork::abort() {
  C10_THROW_ERROR(NotImplementedError, "one operation can't be aborted; abort the group");
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  if (operations_.size() == 1) return operations_[0]->future();
  auto all = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{c10::Device(kNeuron, operations_.at(0)->device())});
  auto left = std::make_shared<std::atomic<size_t>>(operations_.size());
  auto results = result();
  for (const auto& operation : operations_) {
    operation->future()->addCallback([all, left, results](c10::ivalue::Future& each) {
      if (each.hasError()) all->setErrorIfNeeded(each.exception_ptr());
      if (left->fetch_sub(1) == 1 && !all->hasError()) all->markCompleted(c10::IValue(results));
    });
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFutureResult() {
  auto outcome = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  getFuture()->addCallback([outcome](c10::ivalue::Future& each) {
    const auto result = each.hasError() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    outcome->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  });
  return outcome;
}

float NeuronWork::getDuration() const {
  double seconds = 0;
  for (const auto& operation : operations_) seconds += operation->seconds();
  return static_cast<float>(seconds * 1e3);
}

Queue::~Queue() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Queue::push(std::shared_ptr<Operation> operation) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(operation));
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { loop(); });
      pthread_setname_np(thread_.native_handle(), "neuron-comm");
    }
  }
  changed_.notify_all();
}

bool Queue::try_run_here(Operation& operation) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (busy_ || !waiting_.empty()) return false;
    busy_ = true;
  }
  operation.run();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
  }
  changed_.notify_all();
  return true;
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

void Queue::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock,
                  [&] { return (!waiting_.empty() && !busy_) || (stopping_ && waiting_.empty()); });
    if (waiting_.empty()) return;
    const auto operation = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    operation->run();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace torch_neuronx::distributed
