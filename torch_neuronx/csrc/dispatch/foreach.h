// Deferred _foreach_ operators.
//
// torch's optimizers call one _foreach_ operator after the other, each over every parameter. They
// are collected here and run together, chunk by chunk (kernels/multi_tensor.h), as soon as anything
// else touches device memory. Their results are bit for bit those of the separate operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace torch_neuronx {

// Tells autograd that the tensors of a list are written to. It counts writes itself where an
// operator has one tensor, and leaves lists to their kernels: one that forgets it lets what was
// saved for a backward pass be overwritten unnoticed.
void count_writes(at::TensorList written);

// Registers the deferring kernels into `library` (aten, PrivateUse1).
void register_foreach(torch::Library& library);

}  // namespace torch_neuronx
