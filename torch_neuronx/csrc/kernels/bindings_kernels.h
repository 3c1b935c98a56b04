#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx {

/// Adds the kernel_* functions, for tests and benchmarks only, to the extension module. They take
/// contiguous CPU tensors and check shapes, devices and dtypes before they touch memory.
void bind_kernels(pybind11::module_& m);

}  // namespace torch_neuronx
