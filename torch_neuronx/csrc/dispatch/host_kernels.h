// Kernels of ours for CPU tensors, which are called where PyTorch's for the CPU would be.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_neuronx {

// Null for nearly all operators. The kernel takes what the operator takes. Whoever calls a CPU
// kernel by name, for eager code or a program, asks here first. Stable address.
const c10::KernelFunction* host_kernel_of(const c10::OperatorHandle& op);

}  // namespace torch_neuronx
