#include "queue/issue.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "device/generator.h"
#include "device/state.h"
#include "device/stream.h"
#include "dispatch/op_table.h"
#include "dispatch/predicting.h"
#include "memory/allocator.h"
#include "memory/ledger.h"
#include "queue/queue.h"
#include "queue/queued_call.h"

namespace torch_neuronx::queue {

using c10::IValue;
using torch::jit::Stack;

namespace {

// Measured with benchmarks/eager_queue.py: from here on an addition takes longer than handing it to
// a thread that is awake.
std::atomic<int64_t> g_direct_elements{8192};

// Operators whose results have a shape that depends on values, of which PyTorch's tags say nothing.
constexpr std::string_view kByValue[] = {
    "_ctc_loss",      "_pack_padded_sequence",       "linalg_lstsq",
    "_embedding_bag", "_embedding_bag_forward_only", "segment_reduce"};
// Operators that return, beside tensors, sizes of their arguments.
constexpr std::string_view kGivesSizes[] = {"_scaled_dot_product_fused_attention_overrideable"};
constexpr std::string_view kByIndex[] = {"index", "_unsafe_index"};

std::mutex g_here_mutex;
std::map<std::pair<const Issuer*, const char*>, int64_t> g_here;

std::string_view base_name(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  return name.starts_with("aten::") ? name.substr(6) : name;
}

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The generator among the arguments, or the core's.
at::Generator generator_of(const Stack& stack, const Signature& signature, c10::DeviceIndex core) {
  for (size_t i = stack.size() - signature.arguments.size(); i < stack.size(); ++i)
    if (stack[i].isGenerator()) return stack[i].toGenerator();
  return default_generator(core);
}

}  // namespace

int64_t direct_elements() { return g_direct_elements.load(std::memory_order_relaxed); }
void set_direct_elements(int64_t elements) {
  TORCH_CHECK(elements >= 0, "a number of elements must not be negative, but got ", elements);
  g_direct_elements.store(elements);
}

std::vector<HereCount> here_counts() {
  const std::lock_guard<std::mutex> lock(g_here_mutex);
  std::vector<HereCount> counts;
  for (const auto& [key, calls] : g_here) counts.push_back({key.first->name(), key.second, calls});
  return counts;
}
void reset_here_counts() {
  const std::lock_guard<std::mutex> lock(g_here_mutex);
  g_here.clear();
}

Issuer::Issuer(const c10::OperatorHandle& op, Run run)
    : name_(c10::toString(op.operator_name())), run_(std::move(run)), signature_(op), rule_(op) {
  const std::string_view name = base_name(op);
  const auto& returns = op.schema().returns();
  const bool tensors = std::all_of(returns.begin(), returns.end(), [&](const c10::Argument& r) {
    const auto list = r.type()->cast<c10::ListType>();
    const auto kind = (list ? list->getElementType() : r.type())->kind();
    return kind == c10::TypeKind::TensorType ||
           (kind == c10::TypeKind::IntType && contains(kGivesSizes, name));
  });
  const bool views = std::find(signature_.returns.begin(), signature_.returns.end(), -2) !=
                     signature_.returns.end();
  by_index_ = contains(kByIndex, name);
  by_value_ = !by_index_ && (op.hasTag(at::Tag::dynamic_output_shape) ||
                             op.hasTag(at::Tag::data_dependent_output) || contains(kByValue, name));
  never_ = !tensors    ? "it returns values"
           : views     ? "it returns a view"
           : by_value_ ? "the shape of its result depends on values"
                       : "";
}

bool Issuer::reads_values(const Stack& stack) const {
  if (by_value_ || !by_index_) return by_value_;
  const IValue& indices = stack[stack.size() - signature_.arguments.size() + 1];
  if (!indices.isList()) return false;
  for (const IValue& item : indices.toListRef()) {
    if (!item.isTensor() || !item.toTensor().defined()) continue;
    const auto dtype = item.toTensor().scalar_type();
    if (dtype == at::kBool || dtype == at::kByte) return true;
  }
  return false;
}

void Issuer::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (*never_ != '\0') return run_here(op, keys, stack, never_);
  // The handler of portability reports is Python, and wants the caller's line.
  if (g_portability.load(std::memory_order_relaxed) != 0)
    return run_here(op, keys, stack, "portability is checked");
  CallKey key;
  if (!key.read(signature_, *stack))
    return run_here(op, keys, stack, "an argument is not plain memory of one core");
  const uint64_t hash = key.hash();
  SettledPtr settled = settled_.find(key, hash);
  if (settled == nullptr) {
    settled = rule_.settle(signature_, key, *stack);
    if (settled == nullptr) return learn(op, keys, stack, key, hash);
    settled_.add(hash, settled);
    count_ruled();
  }
  if (*settled->reason != '\0') return run_here(op, keys, stack, settled->reason);
  if (!enqueue(op, stack, key, std::move(settled)))
    run_here(op, keys, stack, "a tensor is larger than its storage");
}

void Issuer::count_here(const char* reason) const {
  const std::lock_guard<std::mutex> lock(g_here_mutex);
  ++g_here[{this, reason}];
}

void Issuer::run_here(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                      const char* reason) const {
  count_here(reason);
  wait_current();
  const Inside inside;
  run_(op, keys, stack);
}

void Issuer::learn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                   const CallKey& key, uint64_t hash) {
  count_here("it is the first of its kind");
  wait_current();
  auto settled = std::make_shared<Settled>();
  settled->words.assign(key.words.begin(), key.words.end());
  settled->operands = operands_of(key);
  settled->places.assign(key.places.begin(), key.places.end());
  c10::SmallVector<at::Tensor, 8> tensors;
  for (const at::Tensor* t : key.tensors) tensors.push_back(*t);
  const bool masked = by_index_ && reads_values(*stack);
  const auto said = rule_.ask(signature_, key, *stack);
  const uint64_t before = draws_of_thread();
  AllocationLog log;
  {
    const Inside inside;
    run_(op, keys, stack);
  }
  settled->draws = draws_of_thread() - before;
  settled->reason = read_results(*stack, log, settled.get());
  for (size_t i = 0; i < tensors.size() && *settled->reason == '\0'; ++i) {
    const Operand& was = settled->operands[i];
    const auto* storage = tensors[i].storage().unsafeGetStorageImpl();
    if (tensors[i].sizes() != at::IntArrayRef(was.sizes) ||
        tensors[i].strides() != at::IntArrayRef(was.strides) ||
        storage != key.storages[was.storage]) {
      settled->reason = "it changed the shape of an argument";
    }
  }
  if (masked) settled->reason = "the shape of its result depends on values";
  rule_.compare(key, *settled, said);
  settled_.add(hash, std::move(settled));
  count_settled();
}

// Writes down what the results on the stack are. Returns why such results can't be made beforehand,
// or "".
const char* Issuer::read_results(const Stack& stack, const AllocationLog& log,
                                 Settled* settled) const {
  c10::SmallVector<const c10::StorageImpl*, 8> seen;
  c10::SmallVector<size_t, 8> kept;  // allocations
  const auto read = [&](const at::Tensor& t, Result* result) -> const char* {
    if (!t.defined()) return "";
    if (!is_plain(t)) return "a result is not plain memory of one core";
    const auto* storage = t.storage().unsafeGetStorageImpl();
    if (std::find(seen.begin(), seen.end(), storage) != seen.end())
      return "two results share memory";
    seen.push_back(storage);
    result->kind = Result::Kind::kNew;
    result->geometry = {t.scalar_type(), c10::DimVector(t.sizes()), c10::DimVector(t.strides())};
    result->offset = t.storage_offset();
    result->bytes = storage->nbytes();
    if (storage->data() == nullptr) return "";
    const auto& allocations = log.allocations();
    for (size_t k = 0; k < allocations.size(); ++k) {
      if (allocations[k].live && allocations[k].pointer == storage->data())
        result->allocation = static_cast<int>(k);
    }
    if (result->allocation < 0) return "a result is memory of something else";
    kept.push_back(static_cast<size_t>(result->allocation));
    return "";
  };
  const size_t first = stack.size() - signature_.returns.size();
  for (size_t r = 0; r < signature_.returns.size(); ++r) {
    const IValue& value = stack[first + r];
    auto& results = settled->returns.emplace_back();
    settled->is_list.push_back(value.isTensorList());
    if (signature_.returns[r] >= 0) {
      results.emplace_back().kind = Result::Kind::kArgument;
    } else if (value.isTensor()) {
      if (const char* reason = read(value.toTensor(), &results.emplace_back()); *reason)
        return reason;
    } else if (value.isTensorList()) {
      for (const IValue& item : value.toListRef()) {
        if (const char* reason = read(item.toTensor(), &results.emplace_back()); *reason)
          return reason;
      }
    } else if (value.isInt()) {
      results.emplace_back().kind = Result::Kind::kNumber;
      results.back().number = value.toInt();
    } else {
      return "a result is no tensor";
    }
  }
  for (size_t k = 0; k < log.allocations().size(); ++k) {
    const bool is_result = std::find(kept.begin(), kept.end(), k) != kept.end();
    settled->memory.push_back(
        {log.allocations()[k].bytes, is_result ? Category::kTensors : Category::kScratchpad});
    if (log.allocations()[k].live && !is_result) return "it keeps memory";
  }
  return "";
}

bool Issuer::enqueue(const c10::OperatorHandle& op, Stack* stack, const CallKey& key,
                     SettledPtr settled) const {
  // A storage may have shrunk since the tensor was made (FSDP frees parameters so).
  for (size_t i = 0; i < key.tensors.size(); ++i) {
    const Operand& operand = settled->operands[i];
    const auto end = static_cast<size_t>(key.tensors[i]->storage_offset() + operand.extent) *
                     key.tensors[i]->itemsize();
    if (operand.extent > 0 && end > key.storages[operand.storage]->nbytes()) return false;
  }
  c10::SmallVector<c10::DataPtr, 6> owned;
  Allocations memory;
  for (const auto& [bytes, category] : settled->memory) {
    owned.push_back(allocate_on(key.core, bytes, category));
    memory.push_back({owned.back().get(), bytes});
  }
  auto call = std::make_unique<QueuedCall>(name_, signature_, run_, op, key, settled, memory);
  call->take_arguments(*stack);
  // A region finds it by the key.
  if (predicting::asked()) (void)predicting::prediction_of(op, *stack);
  if (settled->draws > 0) {
    call->set_draws(take_draws(generator_of(*stack, signature_, key.core), settled->draws));
  }
  const size_t base = stack->size() - signature_.arguments.size();
  Stack results;
  const auto make = [&](const Result& result) {
    if (result.kind == Result::Kind::kUndefined) return at::Tensor();
    c10::DataPtr data(nullptr, c10::Device(kNeuron, key.core));
    if (result.allocation >= 0) data = std::move(owned[static_cast<size_t>(result.allocation)]);
    c10::Storage storage = make_storage(result.bytes, std::move(data), device_allocator());
    return tensor_over(std::move(storage), result.geometry.dtype, result.geometry.sizes,
                       result.geometry.strides, result.offset, /*on_core=*/true);
  };
  for (size_t r = 0; r < settled->returns.size(); ++r) {
    const auto& of_return = settled->returns[r];
    if (signature_.returns[r] >= 0) {
      results.push_back((*stack)[base + static_cast<size_t>(signature_.returns[r])]);
    } else if (settled->is_list[r]) {
      c10::List<at::Tensor> list;
      for (const Result& result : of_return) list.push_back(make(result));
      results.emplace_back(std::move(list));
    } else if (of_return.front().kind == Result::Kind::kNumber) {
      results.emplace_back(of_return.front().number);
    } else {
      results.emplace_back(make(of_return.front()));
    }
  }
  // What the call needs only while it runs is freed behind it: the next call may have it.
  push(key.core, std::move(call));
  if (C10_UNLIKELY(has_stream_order())) {
    for (const c10::StorageImpl* storage : key.storages)
      use_on(current_stream(key.core), storage->data());
  }
  torch::jit::drop(*stack, signature_.arguments.size());
  for (IValue& result : results) stack->push_back(std::move(result));
  return true;
}

}  // namespace torch_neuronx::queue
