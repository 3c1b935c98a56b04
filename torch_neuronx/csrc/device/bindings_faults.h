#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx {

void bind_faults(pybind11::module& m);

}  // namespace torch_neuronx
