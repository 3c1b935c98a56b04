// Calls of programs that wait in the queue of their core (queue/queue.h).
#pragma once

#include <Python.h>

#include <memory>

#include "program/call.h"

namespace torch_neuronx::program {

// Whether a call of this thread with these arguments is to be enqueued: calls are, its steps can
// run on another thread, later, and all arguments are plain memory of the core.
bool is_to_be_enqueued(const Program& program, const Tensors& inputs);

// Takes memory for the results and enqueues the call. `inputs` were checked, and
// is_to_be_enqueued(); `owner` keeps the program and its machine code alive. Call it with Python's
// lock.
Tensors enqueue(std::shared_ptr<const Program> program, PyObject* owner, const Tensors& inputs);

}  // namespace torch_neuronx::program
