#include "queue/queued_call.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "memory/allocator.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace torch_neuronx::queue {

using c10::IValue;
using torch::jit::Stack;

namespace {

// How this thread rounds and treats denormals (torch.set_flush_denormal), for the one that works.
uint32_t float_control() {
#if defined(__SSE2__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  // What happened is in another register.
  return static_cast<uint32_t>(__builtin_aarch64_get_fpcr());
#else
  return 0;
#endif
}
void set_float_control(uint32_t control) {
#if defined(__SSE2__)
  constexpr uint32_t kFlags = 0x3f;  // what happened, not what is to happen
  if ((_mm_getcsr() | kFlags) != (control | kFlags)) _mm_setcsr(control);
#elif defined(__aarch64__)
  if (float_control() != control) __builtin_aarch64_set_fpcr(control);
#else
  (void)control;
#endif
}

at::Tensor tensor_over(c10::Storage storage, const Geometry& geometry, int64_t offset) {
  return torch_neuronx::tensor_over(std::move(storage), geometry.dtype, geometry.sizes,
                                    geometry.strides, offset, /*on_core=*/true);
}
// A number of the host has a value that its owner may change after the call.
at::Tensor copy_of_number(const at::Tensor& t) {
  at::Tensor copy = at::empty({}, t.options().device(at::kCPU).requires_grad(false));
  std::memcpy(copy.mutable_data_ptr(), t.const_data_ptr(), t.itemsize());
  return copy;
}

IValue list_value(const std::vector<at::Tensor>& items, bool optional) {
  if (!optional) return IValue(items);
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& item : items)
    list.push_back(item.defined() ? std::optional<at::Tensor>(item) : std::nullopt);
  return IValue(std::move(list));
}

}  // namespace

QueuedCall::QueuedCall(const std::string& name, const Signature& signature, const Run& run,
                       const c10::OperatorHandle& op, const CallKey& key, SettledPtr settled,
                       const Allocations& memory)
    : name_(name),
      signature_(signature),
      run_(run),
      op_(op),
      core_(key.core),
      settled_(std::move(settled)),
      memory_(memory),
      float_control_(float_control()) {
  for (const c10::StorageImpl* storage : key.storages)
    storages_.push_back({const_cast<void*>(storage->data()), storage->nbytes()});
  if (looks_for_regions()) {
    const Arena& arena = torch_neuronx::arena(core_);
    for (const auto& [start, bytes] : storages_)
      serials_.push_back(start == nullptr ? 0 : arena.serial(start));
    for (Allocation& each : memory_)
      each.serial = each.pointer == nullptr ? 0 : arena.serial(each.pointer);
  }
  for (const at::Tensor* t : key.tensors) offsets_.push_back(t->storage_offset());
}

void QueuedCall::take_arguments(const Stack& stack) {
  using Role = Argument::Role;
  const auto& kinds = signature_.arguments;
  arguments_.reserve(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const IValue& value = stack[stack.size() - kinds.size() + i];
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& t = value.toTensor();
      if (t.device().is_privateuseone()) {
        arguments_.emplace_back();
      } else {
        const bool nobody_writes = t.unsafeGetTensorImpl()->is_wrapped_number();
        arguments_.emplace_back(nobody_writes ? t : copy_of_number(t));
      }
    } else if (kinds[i].role == Role::kTensorList && !value.isNone()) {
      lists_.push_back({i, value.toListRef().size()});
      arguments_.emplace_back();
    } else if (value.isGenerator()) {
      arguments_.emplace_back();  // its numbers are taken already
    } else {
      arguments_.push_back(value);
    }
  }
}

void QueuedCall::enter_thread() const {
  set_float_control(float_control_);
  if (omp_get_max_threads() != threads_) omp_set_num_threads(threads_);
}

void QueuedCall::run() {
  enter_thread();
  Promises promises(memory_);
  {
    const GivenDraws draws(settled_->draws > 0 ? &draws_ : nullptr);
    Stack stack = restore();
    // Not the keys of the call: some of them stand for what was switched on in its thread.
    run_(op_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    check_results(stack);
  }
  TORCH_INTERNAL_ASSERT(promises.kept() == 0, name(), " keeps memory of its own");
}

std::string QueuedCall::name() const { return name_ + "(" + text_of(settled_->operands) + ")"; }

// The arguments, with tensors over the memory of those of the call.
Stack QueuedCall::restore() {
  c10::SmallVector<c10::Storage, 8> storages;
  for (const auto& [start, bytes] : storages_)
    storages.push_back(borrow_storage(start, bytes, core_));
  c10::SmallVector<at::Tensor, 8> tensors;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const Operand& operand = settled_->operands[i];
    tensors.push_back(tensor_over(storages[operand.storage], operand, offsets_[i]));
    if (operand.wrapped_number) tensors.back().unsafeGetTensorImpl()->set_wrapped_number(true);
    if (operand.kept_for_backward) tensors.back().set_requires_grad(true);
  }
  Stack stack = std::move(arguments_);
  for (const auto& [argument, item, tensor] : settled_->places)
    if (item < 0) stack[argument] = tensors[tensor];
  for (const auto& [argument, size] : lists_) {
    std::vector<at::Tensor> items(size);
    for (const Place& place : settled_->places) {
      if (place.argument == argument && place.item >= 0)
        items[static_cast<size_t>(place.item)] = tensors[place.tensor];
    }
    stack[argument] = list_value(items, signature_.arguments[argument].optional_items);
  }
  return stack;
}

// The results must lie where those who wait for them look. Those of sizes that are new may lie
// elsewhere or in another order of dimensions, also in memory that another result is promised.
void QueuedCall::check_results(const Stack& stack) const {
  std::vector<std::pair<at::Tensor, const Result*>> misplaced;
  const size_t first = stack.size() - settled_->returns.size();
  for (size_t r = 0; r < settled_->returns.size(); ++r) {
    const auto& results = settled_->returns[r];
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].kind != Result::Kind::kNew || results[i].allocation < 0) continue;
      const IValue& value = stack[first + r];
      const at::Tensor& t =
          settled_->is_list[r] ? value.toListRef()[i].toTensor() : value.toTensor();
      if (!is_in_place(t, results[i])) misplaced.emplace_back(t, &results[i]);
    }
  }
  for (auto& [t, result] : misplaced) {
    const void* start = t.storage().data();
    if (std::any_of(memory_.begin(), memory_.end(),
                    [&](const Allocation& each) { return each.pointer == start; }))
      t = t.clone();
  }
  for (const auto& [t, result] : misplaced) {
    void* const wanted = memory_[static_cast<size_t>(result->allocation)].pointer;
    tensor_over(borrow_storage(wanted, result->bytes, core_), result->geometry, result->offset)
        .copy_(t);
    mark_written(wanted);
  }
}

bool QueuedCall::is_in_place(const at::Tensor& t, const Result& result) const {
  void* const wanted = memory_[static_cast<size_t>(result.allocation)].pointer;
  TORCH_INTERNAL_ASSERT(
      t.sizes() == at::IntArrayRef(result.geometry.sizes) &&
          t.scalar_type() == result.geometry.dtype,
      name(), " gave a result of another shape than was known when it was issued: ", t.sizes());
  if (t.storage().data() != wanted || t.strides() != at::IntArrayRef(result.geometry.strides) ||
      t.storage_offset() != result.offset)
    return false;
  mark_written(wanted);
  return true;
}

}  // namespace torch_neuronx::queue
