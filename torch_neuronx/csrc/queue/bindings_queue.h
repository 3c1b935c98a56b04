#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::queue {

void bind_queue(pybind11::module_& m);

}  // namespace torch_neuronx::queue
