// Calls of programs that wait in the queue of their core (queue/queue.h).
#pragma once

#include <Python.h>

#include <memory>
#include <utility>

#include "device/generator.h"
#include "memory/ledger.h"
#include "program/call.h"

namespace torch_neuronx::program {

// Memory that others own, in which a program works: later than they said so, on another thread.
class LentMemory {
 public:
  // The next argument, at `data` in the storage that starts at `start`; the next result, which is
  // all of a storage, or of memory that is no core's (`on_core` false).
  void add_argument(const void* data, const void* start, size_t bytes, bool written);
  void add_result(const void* start, size_t bytes, bool on_core = true);
  // Runs the program in it.
  void run(const Program& program);

  Allocations scratch;  // what the program works in
  PhiloxState draws{};  // the first of what it draws

 private:
  struct Place {
    char* data;
    size_t storage;  // which of `storages_` it lies in
  };
  c10::SmallVector<std::pair<void*, size_t>, 8> storages_;
  c10::SmallVector<Place, 8> arguments_, targets_;
  c10::SmallVector<const void*, 8> written_;
};

// Whether a call of this thread with these arguments is to be enqueued: calls are, its steps can
// run on another thread, later, and all arguments are plain memory of the core.
bool is_to_be_enqueued(const Program& program, const Tensors& inputs);

// What keeps a program's machine code alive.
using Owner = std::shared_ptr<const void>;
// A reference to a Python object; call it with Python's lock.
Owner owner_of(PyObject* object);

// Takes memory for the results and enqueues the call. `inputs` were checked, and
// is_to_be_enqueued().
Tensors enqueue(std::shared_ptr<const Program> program, Owner owner, const Tensors& inputs);

}  // namespace torch_neuronx::program
