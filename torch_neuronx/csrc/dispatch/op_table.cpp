#include "dispatch/op_table.h"

#include <deque>
#include <mutex>

namespace torch_neuronx {

std::atomic<int> g_portability{0};

namespace {

std::mutex g_mutex;
std::unordered_map<std::string, uint64_t> g_masks;
std::deque<OpEntry> g_entries;
std::unordered_map<std::string_view, OpEntry*> g_by_name;
PortabilityHandler g_handler;

// "aten::add_.Tensor" -> "add"; "aten::_foreach_add_.List" -> "_foreach_add"
std::string base_name(std::string_view name) {
  if (name.starts_with("aten::")) name.remove_prefix(6);  // mylib::add is not add
  name = name.substr(0, name.find('.'));
  if (name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_') name.remove_suffix(1);
  return std::string(name);
}

uint64_t mask_of(std::string_view name) {
  const auto it = g_masks.find(base_name(name));
  return it == g_masks.end() ? 0 : it->second;
}

std::string dtype_name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

}  // namespace

OpEntry& op_entry(std::string_view name) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (const auto it = g_by_name.find(name); it != g_by_name.end()) return *it->second;
  OpEntry& entry = g_entries.emplace_back();
  entry.name = name;
  entry.mask.store(mask_of(name));
  g_by_name.emplace(entry.name, &entry);
  return entry;
}

void set_operator_table(std::unordered_map<std::string, uint64_t> masks) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_masks = std::move(masks);
  for (OpEntry& entry : g_entries) entry.mask.store(mask_of(entry.name));
}

void set_portability(Portability mode, PortabilityHandler handler) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    g_handler = std::move(handler);
  }
  g_portability.store(static_cast<int>(mode));
}

void OpEntry::report(c10::ScalarType dtype) const {
  PortabilityHandler handler;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    handler = g_handler;
  }
  if (handler) handler(name, dtype_name(dtype));
}

std::vector<OpCount> operator_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  std::vector<OpCount> counts;
  for (const OpEntry& entry : g_entries) {
    for (size_t bit = 0; bit < entry.calls.size(); ++bit) {
      if (const int64_t calls = entry.calls[bit].load()) {
        counts.push_back({entry.name, dtype_name(static_cast<c10::ScalarType>(bit)), calls,
                          ((entry.mask.load() >> bit) & 1) != 0});
      }
    }
  }
  return counts;
}

void reset_operator_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (OpEntry& entry : g_entries)
    for (auto& calls : entry.calls) calls.store(0);
}

}  // namespace torch_neuronx
