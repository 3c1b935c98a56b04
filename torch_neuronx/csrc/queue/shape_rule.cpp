#include "queue/shape_rule.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "memory/allocator.h"
#include "queue/shape_functions.h"

namespace torch_neuronx::queue {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr int kProofs = 2;            // calls that have to agree
constexpr size_t kMostFamilies = 64;  // of one operator

class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

c10::Storage storage_without_memory(size_t bytes) {
  c10::Allocator* none = c10::GetAllocator(c10::kMeta);
  return make_storage(bytes, none->allocate(bytes), none);
}

// A tensor of the core without its memory.
at::Tensor without_memory(const at::Tensor& t, const c10::Storage& storage) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), t.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

// Number `count` as the call's first that has memory to be allocated.
bool read_result(const at::Tensor& t, std::vector<const c10::StorageImpl*>* known, int* count,
                 Result* result) {
  if (!t.defined()) return true;
  const bool plain = t.key_set().has_backend(c10::BackendComponent::MetaBit) &&
                     t.layout() == at::kStrided && t.has_storage() && !t.is_conj() && !t.is_neg() &&
                     t.storage_offset() == 0;
  if (!plain) return false;
  const auto* storage = t.storage().unsafeGetStorageImpl();
  if (std::find(known->begin(), known->end(), storage) != known->end()) return false;
  known->push_back(storage);
  result->kind = Result::Kind::kNew;
  result->geometry = {t.scalar_type(), c10::DimVector(t.sizes()), c10::DimVector(t.strides())};
  result->bytes = storage->nbytes();
  if (result->bytes > 0) result->allocation = (*count)++;
  return true;
}

// Strides of dimensions of one element mean nothing, but are what a caller sees.
bool equal(const Result& a, const Result& b) {
  return a.kind == b.kind && a.number == b.number && a.geometry.dtype == b.geometry.dtype &&
         a.geometry.sizes == b.geometry.sizes && a.geometry.strides == b.geometry.strides &&
         a.offset == b.offset && a.bytes == b.bytes && (a.allocation < 0) == (b.allocation < 0);
}

bool equal(const ShapeRule::Returns& a, const ShapeRule::Returns& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Result& x, const Result& y) { return equal(x, y); });
  });
}

}  // namespace

ShapeRule::ShapeRule(const c10::OperatorHandle& op) : op_(op), function_(shape_function(op)) {}

std::optional<ShapeRule::Returns> ShapeRule::ask(const Signature& signature, const CallKey& key,
                                                 const Stack& stack) const {
  if (!function_) return std::nullopt;
  std::vector<c10::Storage> storages;
  for (const c10::StorageImpl* storage : key.storages)
    storages.push_back(storage_without_memory(storage->nbytes()));
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < key.tensors.size(); ++i)
    tensors.push_back(without_memory(*key.tensors[i], storages[key.storage_of[i]]));

  const size_t base = stack.size() - signature.arguments.size();
  Stack asked(stack.begin() + static_cast<std::ptrdiff_t>(base), stack.end());
  std::map<size_t, std::vector<at::Tensor>> lists;
  for (const auto& [argument, item, tensor] : key.places) {
    if (item < 0) {
      asked[argument] = tensors[tensor];
    } else {
      auto& list = lists[argument];
      list.resize(asked[argument].toListRef().size());
      list[static_cast<size_t>(item)] = tensors[tensor];
    }
  }
  for (auto& [argument, list] : lists) {
    if (!signature.arguments[argument].optional_items) {
      asked[argument] = IValue(std::move(list));
      continue;
    }
    c10::List<std::optional<at::Tensor>> items;
    for (at::Tensor& item : list)
      items.push_back(item.defined() ? std::optional<at::Tensor>(std::move(item)) : std::nullopt);
    asked[argument] = std::move(items);
  }
  for (IValue& value : asked) {
    if (value.isGenerator()) value = IValue();
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  }
  try {
    const at::DisableRecordFunctionGuard unrecorded;
    Silence silence;  // the call itself will warn
    const c10::WarningUtils::WarningHandlerGuard unheard(&silence);
    const c10::impl::ExcludeDispatchKeyGuard guard(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet(
            {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastPrivateUse1}));
    if (!function_(op_, &asked)) return std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;  // the call is run where it is made, and refuses with its own words
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].sizes() != key.tensors[i]->sizes() ||
        tensors[i].strides() != key.tensors[i]->strides())
      return std::nullopt;
  }
  Returns returns;
  std::vector<const c10::StorageImpl*> known;
  for (const c10::Storage& storage : storages) known.push_back(storage.unsafeGetStorageImpl());
  int count = 0;
  for (size_t r = 0; r < signature.returns.size(); ++r) {
    const IValue& value = asked[asked.size() - signature.returns.size() + r];
    auto& results = returns.emplace_back();
    if (signature.returns[r] >= 0) {
      results.emplace_back().kind = Result::Kind::kArgument;
    } else if (value.isTensor()) {
      if (!read_result(value.toTensor(), &known, &count, &results.emplace_back()))
        return std::nullopt;
    } else if (value.isTensorList()) {
      for (const at::Tensor& item : value.toTensorVector())
        if (!read_result(item, &known, &count, &results.emplace_back())) return std::nullopt;
    } else if (value.isInt()) {
      results.emplace_back().kind = Result::Kind::kNumber;
      results.back().number = value.toInt();
    } else {
      return std::nullopt;
    }
  }
  return returns;
}

namespace {
bool is_any_empty(const std::vector<Operand>& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const Operand& operand) {
    return std::find(operand.sizes.begin(), operand.sizes.end(), 0) != operand.sizes.end();
  });
}
}  // namespace

// A program that has more kinds of calls than are kept forgets those that it makes no longer.
ShapeRule::Family& ShapeRule::known(std::vector<uint64_t> family) {
  const auto [place, is_new] = families_.try_emplace(std::move(family));
  place->second.asked = ++times_asked_;
  if (is_new && families_.size() > kMostFamilies) {
    families_.erase(std::min_element(
        families_.begin(), families_.end(),
        [](const auto& a, const auto& b) { return a.second.asked < b.second.asked; }));
  }
  return place->second;
}

void ShapeRule::compare(const CallKey& key, const Settled& settled,
                        const std::optional<Returns>& said) {
  // What has no elements draws no numbers, which says nothing of others.
  if (!said || is_any_empty(settled.operands)) return;
  std::vector<uint64_t> family = key.family();
  const std::lock_guard<std::mutex> lock(mutex_);
  Family& known = this->known(std::move(family));
  const bool agrees = *settled.reason == '\0' && equal(*said, settled.returns) &&
                      (known.agreed == 0 || known.draws == settled.draws);
  known.differed = known.differed || !agrees;
  ++known.agreed;
  known.is_list = settled.is_list;
  known.draws = settled.draws;
}

namespace {
// Whether memory that is written may be that of another operand, or of the same one again: that is
// refused by where each of them lies, which shape functions are not told.
bool may_overlap(const Signature& signature, const CallKey& key) {
  if (!signature.writes) return false;
  if (key.storages.size() < key.tensors.size()) return true;
  return std::any_of(key.places.begin(), key.places.end(), [&](const Place& place) {
    return signature.arguments[place.argument].written &&
           at::has_internal_overlap(*key.tensors[place.tensor]) == at::MemOverlap::Yes;
  });
}
}  // namespace

SettledPtr ShapeRule::settle(const Signature& signature, const CallKey& key, const Stack& stack) {
  if (!function_ || may_overlap(signature, key)) return nullptr;
  auto made = std::make_shared<Settled>();
  {
    const std::vector<uint64_t> family = key.family();
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = families_.find(family);
    if (known == families_.end() || known->second.differed || known->second.agreed < kProofs)
      return nullptr;
    known->second.asked = ++times_asked_;
    made->is_list = known->second.is_list;
    made->draws = known->second.draws;
  }
  // What draws no number for tensors without elements is another kind.
  made->operands = operands_of(key);
  if (made->draws > 0 && is_any_empty(made->operands)) return nullptr;
  std::optional<Returns> said = ask(signature, key, stack);
  if (!said) return nullptr;
  made->words.assign(key.words.begin(), key.words.end());
  made->places.assign(key.places.begin(), key.places.end());
  // What it works in is not known: while it runs it gets that from the host (memory/allocator.cpp).
  for (const auto& results : *said)
    for (const Result& result : results)
      if (result.allocation >= 0) made->memory.push_back({result.bytes, Category::kTensors});
  made->returns = std::move(*said);
  return made;
}

}  // namespace torch_neuronx::queue
