#include "queue/settled.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <sstream>

namespace torch_neuronx::queue {
namespace {
constexpr size_t kMaxKinds = 512;  // of one operator
}

SettledPtr SettledCalls::find(const CallKey& key, uint64_t hash) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    const auto& words = it->second->words;
    if (std::equal(words.begin(), words.end(), key.words.begin(), key.words.end()))
      return it->second;
  }
  return nullptr;
}

void SettledCalls::add(uint64_t hash, SettledPtr settled) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (known_.size() >= kMaxKinds) known_.clear();
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->words != settled->words) continue;
    it->second = std::move(settled);
    return;
  }
  known_.emplace(hash, std::move(settled));
}

std::vector<Operand> operands_of(const CallKey& key) {
  std::vector<Operand> operands;
  for (size_t i = 0; i < key.tensors.size(); ++i) {
    const at::Tensor& t = *key.tensors[i];
    Operand operand;
    operand.dtype = t.scalar_type();
    operand.sizes = t.sizes();
    operand.strides = t.strides();
    operand.storage = key.storage_of[i];
    operand.extent = t.numel() == 0 ? 0 : 1;
    for (int64_t d = 0; d < t.dim() && t.numel() > 0; ++d)
      operand.extent += (t.size(d) - 1) * t.stride(d);
    operand.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
    operand.kept_for_backward = t.requires_grad() && c10::GradMode::is_enabled();
    operands.push_back(std::move(operand));
  }
  return operands;
}

std::string text_of(const std::vector<Operand>& operands) {
  std::ostringstream text;
  const char* comma = "";
  for (const Operand& operand : operands) {
    text << comma << c10::getDtypeNames(operand.dtype).first << at::IntArrayRef(operand.sizes);
    comma = ", ";
  }
  return text.str();
}

}  // namespace torch_neuronx::queue
