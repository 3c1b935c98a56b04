// Python's side of the registry of processes.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::registry {

void bind_registry(pybind11::module& m);

}  // namespace torch_neuronx::registry
