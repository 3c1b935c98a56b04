#include "memory/ledger.h"

#include <algorithm>

namespace torch_neuronx {
namespace {
thread_local AllocationLog* t_log = nullptr;
thread_local Promises* t_promises = nullptr;

// The first that has so many bytes and is free.
Allocation* free_one(Allocations& all, size_t bytes) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Allocation& each) {
    return each.bytes == bytes && !each.live;
  });
  return found == all.end() ? nullptr : found;
}
}  // namespace

AllocationLog::AllocationLog() : outer_(t_log) { t_log = this; }
AllocationLog::~AllocationLog() { t_log = outer_; }
AllocationLog* AllocationLog::current() { return t_log; }

void AllocationLog::add(void* pointer, size_t bytes) {
  if (Allocation* again = free_one(allocations_, bytes)) {
    *again = {pointer, bytes};
  } else {
    allocations_.push_back({pointer, bytes});
  }
}

void AllocationLog::freed(void* pointer) {
  for (Allocation& each : allocations_)
    if (each.pointer == pointer) each.live = false;
}

Promises::Promises(Allocations& given) : given_(given), outer_(t_promises) {
  for (Allocation& each : given_) each.live = false;
  t_promises = this;
}
Promises::~Promises() { t_promises = outer_; }
Promises* Promises::current() { return t_promises; }

size_t Promises::kept() const {
  return static_cast<size_t>(
      std::count_if(given_.begin(), given_.end(), [](const Allocation& a) { return a.live; }));
}

void* Promises::serve(size_t bytes) {
  Allocation* given = free_one(given_, bytes);
  if (given == nullptr) return nullptr;
  given->live = true;
  return given->pointer;
}

bool Promises::take_back(void* pointer) {
  for (Allocation& each : given_) {
    if (each.pointer != pointer || !each.live) continue;
    each.live = false;
    return true;
  }
  return false;
}

}  // namespace torch_neuronx
