#include "memory/stream_order.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <utility>

#include "device/state.h"
#include "queue/queue.h"

namespace torch_neuronx {
namespace {
// What the default stream had enqueued when nothing had been written down yet: all memory that is
// free may be used by that.
std::array<std::atomic<uint64_t>, kMaxDevices> g_before{};
}  // namespace

namespace detail {
std::atomic<bool> g_stream_order{false};
void begin_stream_order_slow() {
  static std::once_flag once;
  std::call_once(once, [] {
    g_stream_order.store(true);  // first: what is freed from now on is written down
    for (c10::DeviceIndex core = 0; core < device_count(); ++core)
      g_before[static_cast<size_t>(core)].store(queue::issued(core, 0));
  });
}
}  // namespace detail

void StreamOrder::note(Uses* uses, int slot, uint64_t position) {
  for (Use& use : *uses) {
    if (use.slot != slot) continue;
    use.position = std::max(use.position, position);
    return;
  }
  uses->push_back({slot, position});
}

bool StreamOrder::is_open(const Uses& uses, int but) const {
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.slot != but && !queue::done(core_, use.slot, use.position);
  });
}

StreamOrder::Ranges::iterator StreamOrder::first_behind(const char* ptr) {
  auto next = freed_.upper_bound(ptr);
  if (next == freed_.begin()) return next;
  const auto before = std::prev(next);
  return before->first + before->second.bytes > ptr ? before : next;
}

void StreamOrder::use(const char* ptr, int slot) {
  note(&in_use_[ptr], slot, queue::issued(core_, slot));
}

void StreamOrder::freed(char* ptr, size_t bytes, int slot) {
  Uses uses;
  note(&uses, slot, queue::issued(core_, slot));
  if (const auto known = in_use_.find(ptr); known != in_use_.end()) {
    for (const Use& use : known->second) note(&uses, use.slot, use.position);
    in_use_.erase(known);
  }
  if (is_open(uses, kNoStream)) freed_[ptr] = {bytes, std::move(uses)};
}

void StreamOrder::taken(char* ptr, size_t bytes) {
  const char* const end = ptr + bytes;
  for (auto it = first_behind(ptr); it != freed_.end() && it->first < end;) {
    const char* const start = it->first;
    Range range = std::move(it->second);
    it = freed_.erase(it);
    const char* const stop = start + range.bytes;
    if (start < ptr) freed_[start] = {static_cast<size_t>(ptr - start), range.uses};
    if (stop > end) freed_[end] = {static_cast<size_t>(stop - end), std::move(range.uses)};
  }
}

size_t StreamOrder::find(const char* ptr, size_t bytes, size_t wanted, int slot) {
  const auto before = g_before[static_cast<size_t>(core_)].load(std::memory_order_relaxed);
  if (slot != 0 && !queue::done(core_, 0, before)) return bytes;
  const char* at = ptr;
  const char* const end = ptr + bytes;
  for (auto it = first_behind(ptr); it != freed_.end() && it->first < end;) {
    if (it->first >= at + wanted) break;
    if (!is_open(it->second.uses, kNoStream)) {  // forgotten
      it = freed_.erase(it);
      continue;
    }
    if (is_open(it->second.uses, slot)) at = it->first + it->second.bytes;
    ++it;
  }
  return at + wanted <= end ? static_cast<size_t>(at - ptr) : bytes;
}

bool StreamOrder::is_used_by_others(const char* ptr, int slot) {
  if (const auto known = in_use_.find(ptr); known != in_use_.end() && is_open(known->second, slot))
    return true;
  const auto it = first_behind(ptr);
  return it != freed_.end() && it->first <= ptr && is_open(it->second.uses, slot);
}

}  // namespace torch_neuronx
