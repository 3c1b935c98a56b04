#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::conv {

// conv_run, conv_method: for tests and benchmarks, on CPU tensors. Not part of the public
// interface.
void bind_conv(pybind11::module& m);

}  // namespace torch_neuronx::conv
