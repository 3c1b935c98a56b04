#include "distributed/operation.h"

#include <ATen/ops/stack.h>
#include <c10/core/DeviceGuard.h>
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "device/python_lock.h"
#include "device/state.h"
#include "device/stream.h"
#include "distributed/announcer.h"
#include "distributed/error.h"
#include "queue/queue.h"
#include "registry/registry.h"

namespace torch_neuronx::distributed {
namespace {

bool have_one_shape(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors)
    if (tensor.sizes() != tensors[0].sizes() || tensor.dtype() != tensors[0].dtype()) return false;
  return !tensors.empty();
}

}  // namespace

Operation::Operation(std::function<void()> body, std::vector<at::Tensor> results,
                     std::vector<at::Tensor> kept, c10::DeviceIndex device,
                     std::shared_ptr<Completion> before)
    : body_(std::move(body)),
      results_(std::move(results)),
      kept_(std::move(kept)),
      before_(pending_of(current_stream(device))),
      device_(device) {
  if (before != nullptr) before_.push_back(std::move(before));
}

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
  settle(error, -1);
}

void Operation::finish(std::exception_ptr error, int source) noexcept {
  if (activity_) activity_->end();
  settle(error, source);
  announce();
}

void Operation::settle(std::exception_ptr error, int source) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_ = std::chrono::steady_clock::now();
    error_ = error;
    source_ = source;
    done_.store(true, std::memory_order_release);
  }
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(finished_ - started_);
  registry::count_collective(device_, static_cast<uint64_t>(took.count()), bytes_, error);
  changed_.notify_all();
}

void Operation::announce() noexcept {
  // Released without the lock: their destructors run Python code.
  std::vector<at::Tensor> kept;
  std::vector<std::shared_ptr<Completion>> before;
  std::function<void()> body;
  std::vector<std::function<void(std::exception_ptr)>> callbacks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept.swap(kept_);
    before.swap(before_);
    body.swap(body_);
    callbacks.swap(callbacks_);
    announced_ = true;
  }
  if (callbacks.empty()) return;
  // Who is called may look at the operation, which nobody else may need any more.
  Announcer::instance().post([self = shared_from_this(), callbacks = std::move(callbacks)] {
    for (const auto& callback : callbacks) callback(self->error_);
  });
}

void Operation::when_done(std::function<void(std::exception_ptr)> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!announced_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(error_);
}

void Operation::attended_by(Attend attend) {
  const std::lock_guard<std::mutex> lock(mutex_);
  attend_ = std::move(attend);
}

void Operation::attend(std::chrono::steady_clock::time_point until) {
  if (done()) return;
  Attend attend;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    attend = attend_;
  }
  if (attend) attend(until);
}

void Operation::wait() {
  attend(std::chrono::steady_clock::time_point::max());
  if (!done()) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done(); });
  }
  if (error_) std::rethrow_exception(error_);
}

bool Operation::wait_for(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  attend(until);
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

void NeuronWork::join() {
  for (const auto& operation : operations_) operation->wait();
}

void NeuronWork::synchronize() {
  // Who sent is known when it has come.
  const bool tells = opType_ == c10d::OpType::BARRIER || opType_ == c10d::OpType::RECVANYSOURCE;
  if (tells && queue::asynchronous()) {
    const WithoutPythonLock released;
    return join();
  }
  for (const auto& operation : operations_)
    add_pending(current_stream(operation->device()), operation);
}

void NeuronWork::abort() {
  C10_THROW_ERROR(NotImplementedError, "one operation can't be aborted; abort the group");
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_ != nullptr) return future_;
  const c10::DeviceIndex device = operations_.empty() ? current_device() : operations_[0]->device();
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{c10::Device(kNeuron, device)});
  const Completions ends(operations_.begin(), operations_.end());
  if (opType_ != c10d::OpType::ALLGATHER || !have_one_shape(result())) {
    on_stream_with(ends, device, [&] { future_->markCompleted(c10::IValue(result())); });
    return future_;
  }
  // As on other devices: what a list of tensors was gathered into, as one tensor, which PyTorch's
  // quantizing hooks index. To stack them is an operator, so it waits; others may need the GIL.
  std::optional<pybind11::gil_scoped_release> released;
  if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
  on_stream_with(ends, device, [&] {
    try {
      future_->markCompleted(c10::IValue(std::vector<at::Tensor>{at::stack(result())}));
    } catch (const c10::Error&) {
      future_->setError(std::current_exception());
    }
  });
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFutureResult() {
  auto outcome = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  const auto set = [outcome](c10d::WorkResult result) {
    outcome->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  };
  if (operations_.empty()) set(c10d::WorkResult::SUCCESS);
  struct State {
    std::atomic<size_t> left;
    std::atomic<bool> failed{false};
  };
  auto state = std::make_shared<State>();
  state->left = operations_.size();
  for (const auto& operation : operations_) {
    operation->when_done([state, set](const std::exception_ptr& error) {
      if (error) state->failed = true;
      if (state->left.fetch_sub(1) == 1)
        set(state->failed ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS);
    });
  }
  return outcome;
}

float NeuronWork::getDuration() const {
  double seconds = 0;
  for (const auto& operation : operations_) seconds += operation->seconds();
  return static_cast<float>(seconds * 1e3);
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
  operation.announce();
  return true;
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

bool Queue::idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_.empty() && !busy_;
}

void Queue::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Queue::loop() {
  queue::serve_on_this_thread();
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
    lock.unlock();
    operation->announce();
    lock.lock();
  }
}

}  // namespace torch_neuronx::distributed
