#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx {

// What operators demand that trust their caller, for calls of PyTorch's own kernels from Python.
void bind_trusting(pybind11::module& m);

}  // namespace torch_neuronx
