// The process group, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_neuronx::distributed {

void bind_distributed(pybind11::module_& m);

}  // namespace torch_neuronx::distributed
