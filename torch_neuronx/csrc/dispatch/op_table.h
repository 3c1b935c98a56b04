// What the operator table (torch_neuronx/ops, in Python) says about each operator, as the hot path
// needs it: which dtypes a NeuronCore executes, and how often the operator ran.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch_neuronx {

enum class Portability : int { kPermissive = 0, kWarn = 1, kStrict = 2 };
// Called before an operator runs that a NeuronCore would not; may throw.
using PortabilityHandler = std::function<void(const std::string& op, const std::string& dtype)>;

extern std::atomic<int> g_portability;

struct OpEntry {
  std::string name;               // "aten::add.Tensor"
  std::atomic<uint64_t> mask{0};  // bit i: ScalarType i runs on a NeuronCore
  std::array<std::atomic<int64_t>, 64> calls{};

  // Counts a call, and in the warn and strict modes asks the handler about it.
  void note(c10::ScalarType dtype) {
    const auto bit = static_cast<size_t>(dtype) & 63;
    calls[bit].fetch_add(1, std::memory_order_relaxed);
    if (C10_UNLIKELY(g_portability.load(std::memory_order_relaxed) != 0) &&
        !((mask.load(std::memory_order_relaxed) >> bit) & 1)) {
      report(dtype);
    }
  }
  void report(c10::ScalarType dtype) const;
};

// The entry of an operator with its overload, made on first use. Stable address.
OpEntry& op_entry(std::string_view name_with_overload);

// Base ATen names (no namespace, overload or trailing underscore) -> mask; others count as host
// only.
void set_operator_table(std::unordered_map<std::string, uint64_t> masks);
void set_portability(Portability mode, PortabilityHandler handler);

struct OpCount {
  std::string name, dtype;
  int64_t calls;
  bool native;
};
std::vector<OpCount> operator_counts();
void reset_operator_counts();

}  // namespace torch_neuronx
