// The outermost call of a program: tensors in, tensors out.
#pragma once

#include "program/program.h"

namespace torch_neuronx::program {

using Tensors = c10::SmallVector<at::Tensor, 8>;

// Throws ValueError unless the tensor can be argument number `i`.
void check_argument(const Program& program, size_t i, const at::Tensor& tensor);

// Two arguments may share memory, and one of them be written to: neither is stable then.
void unsettle_shared_memory(const Program& program, std::span<Argument> arguments);

// `inputs` were checked; they are given back as soon as no step needs them.
Tensors call(const Program& program, Tensors& inputs);

}  // namespace torch_neuronx::program
