// Shape functions of operators: what a call gives, told from tensors without memory ("meta").
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace torch_neuronx::queue {

// Takes arguments from the stack, with "meta" tensors in place of a core's, and puts such results
// there. Throws what the operator would refuse; false: it can't tell.
using ShapeFunction = std::function<bool(const c10::OperatorHandle&, torch::jit::Stack*)>;

// PyTorch's own in C++ where it has one, or one of ours; null if there is none. PyTorch's functions
// in Python, which it registers above those in C++, take longer than many an operator.
ShapeFunction shape_function(const c10::OperatorHandle& op);

}  // namespace torch_neuronx::queue
