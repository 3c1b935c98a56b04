// Deferred _foreach_ operators.
//
// torch's optimizers call one _foreach_ operator after the other, each over every parameter. They
// are collected here and run together, chunk by chunk (kernels/multi_tensor.h), as soon as anything
// else touches device memory. Their results are bit for bit those of the separate operators.
#pragma once

#include <torch/library.h>

namespace torch_neuronx {

// Registers the deferring kernels into `library` (aten, PrivateUse1).
void register_foreach(torch::Library& library);

}  // namespace torch_neuronx
