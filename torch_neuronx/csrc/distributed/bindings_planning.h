#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_neuronx::distributed {

// What planning needs of c10d and PyTorch doesn't give to Python (contract in _C.pyi).
void bind_planning(pybind11::module_& m);

}  // namespace torch_neuronx::distributed
