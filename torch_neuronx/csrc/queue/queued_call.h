// A call of an operator whose results and memory are settled, and which waits in the queue.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <utility>

#include "device/generator.h"
#include "memory/ledger.h"
#include "queue/queue.h"
#include "queue/settled.h"

namespace torch_neuronx::queue {

// Does all of a call's work.
using Run =
    std::function<void(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*)>;

class QueuedCall final : public Work {
 public:
  // `name`, `signature` and `run` are the operator's, which live as long as the process.
  QueuedCall(const std::string& name, const Signature& signature, const Run& run,
             const c10::OperatorHandle& op, const CallKey& key, SettledPtr settled,
             const Allocations& memory);
  // Copies the arguments, but for the tensors of the core.
  void take_arguments(const torch::jit::Stack& stack);
  void set_draws(PhiloxState state) { draws_ = state; }
  PhiloxState draws() const { return draws_; }

  void run() override;
  std::string name() const override;
  QueuedCall* as_call() override { return this; }

  // Has this thread round and share work as the calling one did.
  void enter_thread() const;
  bool enters_as(const QueuedCall& other) const {
    return float_control_ == other.float_control_ && threads_ == other.threads_;
  }

  const c10::OperatorHandle& op() const { return op_; }
  c10::DeviceIndex core() const { return core_; }
  const Signature& signature() const { return signature_; }
  const SettledPtr& settled() const { return settled_; }
  // Of the arguments; None in the place of tensors of the core (`settled().places`).
  const torch::jit::Stack& arguments() const { return arguments_; }
  // Start and bytes of the storages that the operands lie in, and the operands' offsets.
  const auto& storages() const { return storages_; }
  const auto& offsets() const { return offsets_; }
  const Allocations& memory() const { return memory_; }
  // Which allocation a storage was of when the call was issued; 0 if nobody asked.
  uint64_t storage_serial(size_t storage) const { return serials_.empty() ? 0 : serials_[storage]; }

 private:
  torch::jit::Stack restore();
  void check_results(const torch::jit::Stack& stack) const;
  bool is_in_place(const at::Tensor& t, const Result& result) const;

  const std::string& name_;
  const Signature& signature_;
  const Run& run_;
  const c10::OperatorHandle op_;
  const c10::DeviceIndex core_;
  const SettledPtr settled_;
  Allocations memory_;
  c10::SmallVector<std::pair<void*, size_t>, 6> storages_;
  c10::SmallVector<uint64_t, 6> serials_;
  c10::SmallVector<int64_t, 6> offsets_;
  torch::jit::Stack arguments_;
  c10::SmallVector<std::pair<size_t, size_t>, 2> lists_;  // arguments, and how long they are
  PhiloxState draws_{};
  const uint32_t float_control_;
  const int threads_ = at::get_num_threads();
};

}  // namespace torch_neuronx::queue
