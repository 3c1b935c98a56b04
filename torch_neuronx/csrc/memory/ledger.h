// The device memory that one operator call asks for. When a call is issued on one thread and runs
// on another, later, its memory is taken when it is issued: memory is then used in the order of
// issue, whatever runs when, and a core that is full says so at once.
//
// A first call of its kind runs while an AllocationLog writes down what it asks for. An equal call
// that is issued later gets all of that at its issue, and asks for it while it runs: Promises
// answer. What the call frees, its next request for as many bytes has again, in both.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

#include "memory/arena.h"

namespace torch_neuronx {

struct Allocation {
  void* pointer;
  size_t bytes;
  uint64_t serial = 0;  // of the block, if somebody wants to know whether it is still in use
  bool live = true;     // not freed yet, as far as the thread knows that allocated it
};
using Allocations = c10::SmallVector<Allocation, 6>;

// While alive, writes down what this thread allocates on cores.
class AllocationLog {
 public:
  AllocationLog();
  ~AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;
  // In the order of the first use.
  const Allocations& allocations() const { return allocations_; }

  // For the allocator.
  static AllocationLog* current();
  void add(void* pointer, size_t bytes);
  void freed(void* pointer);

 private:
  Allocations allocations_;
  AllocationLog* const outer_;
};

// While alive, this thread's allocations on cores are served from `given`, memory that somebody
// else owns and frees.
class Promises {
 public:
  explicit Promises(Allocations& given);
  ~Promises();
  Promises(const Promises&) = delete;
  Promises& operator=(const Promises&) = delete;
  // How many of the allocations are served and nobody has freed them.
  size_t kept() const;

  // For the allocator.
  static Promises* current();
  // The first memory of that size that nobody has, which is that of the same allocation of the
  // first call; null if there is none left.
  void* serve(size_t bytes);
  // False if `pointer` is not one that was served.
  bool take_back(void* pointer);

 private:
  Allocations& given_;
  Promises* const outer_;
};

}  // namespace torch_neuronx
