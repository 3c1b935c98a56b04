#include "dispatch/predicting.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "device/state.h"
#include "queue/call_key.h"
#include "registry/registry.h"

namespace torch_neuronx::predicting {

std::atomic<bool> g_asked{false};

namespace {

thread_local bool t_predicts = false;  // this thread asks what operators take

using c10::IValue;
using queue::Argument;
using queue::CallKey;
using queue::Signature;
using registry::Prediction;
using torch::jit::Stack;

// A bound keeps a program whose calls never repeat from collecting kinds.
constexpr size_t kMostKinds = 1 << 16;

struct Operator {
  explicit Operator(const c10::OperatorHandle& op)
      : signature(op),
        views(!signature.returns.empty() &&
              std::all_of(signature.returns.begin(), signature.returns.end(),
                          [](int source) { return source == -2; })) {}

  using Kind = std::pair<std::vector<uint64_t>, Prediction*>;
  const Signature signature;
  const bool views;  // all that it gives are views, which take no time
  std::unordered_multimap<uint64_t, Kind> kinds;
};

// Never destroyed: threads of cores work to the end of the process.
struct Table {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<c10::OperatorHandle, std::unique_ptr<Operator>> operators;
  std::vector<std::pair<Exchange, Prediction*>> exchanges;
  std::vector<Prediction*> predictions;  // by number
  std::deque<Wanted> wanted;
  registry::Counters counters;
  Prediction nothing;            // of what takes no time
  Prediction* excess = nullptr;  // of kinds that are too many
  size_t settled = 0;
  bool stopped = false;

  // With the mutex held.
  Prediction* want(Wanted kind) {
    if (predictions.size() >= kMostKinds) {
      if (excess != nullptr) return excess;
      kind.failure = "there are too many kinds of calls";
    }
    kind.number = predictions.size();
    auto* prediction = new Prediction;
    predictions.push_back(prediction);
    if (predictions.size() > kMostKinds) excess = prediction;
    wanted.push_back(std::move(kind));
    changed.notify_all();
    return prediction;
  }
};
Table& table() {
  static auto& made = *new Table;
  return made;
}

// What an argument is, of a call that `CallKey` does not read: one with tensors of several devices,
// or of other layouts.
void add_loosely(const IValue& value, CallKey* key) {
  auto& words = key->words;
  words.push_back(static_cast<uint64_t>(value.tagKind().size()));
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (!t.defined()) return;
    words.push_back(static_cast<uint64_t>(t.device().type()) << 16 |
                    static_cast<uint64_t>(t.scalar_type()) << 8 |
                    static_cast<uint64_t>(t.layout()));
    if (t.is_nested()) return;
    words.push_back(static_cast<uint64_t>(t.dim()));
    for (const int64_t size : t.sizes()) words.push_back(static_cast<uint64_t>(size));
    if (t.layout() != at::kStrided) return;
    for (const int64_t stride : t.strides()) words.push_back(static_cast<uint64_t>(stride));
  } else if (value.isList()) {
    words.push_back(value.toListRef().size());
    for (const IValue& item : value.toListRef()) add_loosely(item, key);
  } else if (value.isInt()) {
    words.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    words.push_back(static_cast<uint64_t>(value.toBool()));
  } else if (value.isDevice()) {
    words.push_back(static_cast<uint64_t>(value.toDevice().type()));
  }
}

// A number of the host that is no tensor for who wrote the program: `2 * x`.
IValue number_in(const at::Tensor& t) {
  const void* data = t.const_data_ptr();
  switch (t.scalar_type()) {
    case at::kDouble:
      return *static_cast<const double*>(data);
    case at::kLong:
      return *static_cast<const int64_t*>(data);
    case at::kBool:
      return *static_cast<const bool*>(data);
    default:
      return t;
  }
}

// The arguments of a call without the memory of its tensors, as Python is told of them.
class Description {
 public:
  Description(const Signature& signature, const Stack& stack) {
    const size_t base = stack.size() - signature.arguments.size();
    for (size_t i = 0; i < signature.arguments.size(); ++i)
      arguments.push_back(described(stack[base + i], signature.arguments[i]));
  }

  Stack arguments;
  std::string failure;

 private:
  IValue described(const IValue& value, const Argument& about) {
    if (value.isTensor()) {
      const at::Tensor& t = value.toTensor();
      const bool number = t.defined() && t.unsafeGetTensorImpl()->is_wrapped_number() && t.is_cpu();
      return number ? number_in(t) : IValue(described(t));
    }
    if (about.role == Argument::Role::kTensorList && !value.isNone()) {
      if (!about.optional_items) {
        c10::List<at::Tensor> list;
        for (const IValue& item : value.toListRef()) list.push_back(described(item.toTensor()));
        return list;
      }
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& item : value.toListRef())
        list.push_back(item.isTensor() ? std::optional<at::Tensor>(described(item.toTensor()))
                                       : std::nullopt);
      return list;
    }
    if (value.isGenerator()) return {};
    if (value.isStorage() || value.isObject() || value.isPyObject() || value.isCapsule() ||
        value.isSymInt() || value.isStream() || value.isQuantizer())
      failure = "an argument is " + value.tagKind();
    return value;
  }

  at::Tensor described(const at::Tensor& t) {
    if (!t.defined()) return t;
    for (const auto& [known, made] : made_)
      if (known.is_same(t)) return made;
    at::Tensor made;
    if (t.is_nested() || t.layout() != at::kStrided || t.is_quantized()) {
      failure = "an argument is not a plain tensor";
    } else if (t.device().is_privateuseone()) {
      made = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
    } else if (t.is_cpu()) {
      // As large as it is for who asks, without its memory and values.
      const std::vector<int64_t> strides(static_cast<size_t>(t.dim()), 0);
      made = at::detail::empty_strided_cpu(t.sizes(), strides, t.scalar_type());
      std::memset(made.mutable_data_ptr(), 0, made.storage().nbytes());
    } else {
      failure = "an argument is on " + t.device().str();
    }
    made_.emplace_back(t, made);
    return made;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> made_;
};

// With the mutex held.
Operator& operator_of(const c10::OperatorHandle& op) {
  auto& slot = table().operators[op];
  if (slot == nullptr) slot = std::make_unique<Operator>(op);
  return *slot;
}

// The core of the execution that this thread is in the middle of; -1 if that is part of another
// one.
int executing() {
  const registry::Thread& thread = registry::t_thread;
  if (thread.depth != 1 || thread.core == nullptr || t_predicts) return -1;
  return static_cast<int>(thread.core - registry::g_cores.load(std::memory_order_relaxed));
}

Prediction* find(const Operator& op, const CallKey& key, uint64_t hash) {
  const auto [first, last] = op.kinds.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    const auto& words = at->second.first;
    if (std::equal(words.begin(), words.end(), key.words.begin(), key.words.end()))
      return at->second.second;
  }
  return nullptr;
}

}  // namespace

Prediction& prediction_of(const c10::OperatorHandle& op, const Stack& stack) {
  Table& all = table();
  std::unique_lock<std::mutex> lock(all.mutex);
  Operator& mine = operator_of(op);
  if (mine.views) return all.nothing;
  lock.unlock();
  CallKey key;
  if (!key.read(mine.signature, stack)) {
    key.words.clear();
    const size_t base = stack.size() - mine.signature.arguments.size();
    for (size_t i = base; i < stack.size(); ++i) add_loosely(stack[i], &key);
  }
  const uint64_t hash = key.hash();
  lock.lock();
  if (Prediction* found = find(mine, key, hash)) return *found;
  lock.unlock();
  Description description(mine.signature, stack);
  Wanted kind;
  kind.name = c10::toString(op.operator_name());
  kind.arguments = std::move(description.arguments);
  kind.failure = std::move(description.failure);
  lock.lock();
  if (Prediction* found = find(mine, key, hash)) return *found;
  Prediction* made = all.want(std::move(kind));
  if (made != all.excess)
    mine.kinds.emplace(hash, Operator::Kind({key.words.begin(), key.words.end()}, made));
  return *made;
}

Prediction* known(const c10::OperatorHandle& op, const std::vector<uint64_t>& words) {
  CallKey key;
  key.words.append(words.begin(), words.end());
  const uint64_t hash = key.hash();
  const std::lock_guard<std::mutex> lock(table().mutex);
  return find(operator_of(op), key, hash);
}

void Counted::of(const c10::OperatorHandle& op, const Stack& stack) {
  core_ = executing();
  if (core_ >= 0) prediction_ = &prediction_of(op, stack);
}

void Counted::of_nothing() {
  core_ = executing();
  if (core_ >= 0) prediction_ = &table().nothing;
}

void Counted::count() {
  if (std::uncaught_exceptions() == 0) prediction_->count(core_);
}

Prediction& prediction_of(const Exchange& exchange) {
  Table& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [known, prediction] : all.exchanges)
    if (known == exchange) return *prediction;
  Wanted kind;
  kind.name = exchange.kind;
  kind.exchange = exchange;
  Prediction* made = all.want(std::move(kind));
  if (made != all.excess) all.exchanges.emplace_back(exchange, made);
  return *made;
}

void ask(const registry::Counters& counters) {
  Table& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  TORCH_CHECK_VALUE(!g_asked.load(), "this process predicts already what operators take");
  all.nothing.know(counters, {});
  all.counters = counters;
  g_asked.store(true);
}

std::optional<Wanted> next_wanted() {
  t_predicts = true;
  Table& all = table();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.changed.wait(lock, [&] { return all.stopped || !all.wanted.empty(); });
  if (all.stopped) return std::nullopt;
  Wanted found = std::move(all.wanted.front());
  all.wanted.pop_front();
  return found;
}

void stop() {
  g_asked.store(false);
  const std::lock_guard<std::mutex> lock(table().mutex);
  table().stopped = true;
  table().changed.notify_all();
}

Prediction& wanted(size_t number) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  TORCH_CHECK_VALUE(number < table().predictions.size(), "there is no kind ", number);
  return *table().predictions[number];
}

void settled() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  ++table().settled;
}

size_t unsettled() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  return table().predictions.size() - table().settled;
}

const registry::Counters& counters() { return table().counters; }

}  // namespace torch_neuronx::predicting
