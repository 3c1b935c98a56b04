#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_neuronx::nki {

// Looking into the table of native functions, for tests.
void bind_nki(pybind11::module& m);

}  // namespace torch_neuronx::nki
