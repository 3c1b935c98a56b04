#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::inference {

// Makes Python see torch_neuronx.InputError, and adds set_thread_share (contract in _C.pyi).
void bind_inference(pybind11::module_& m);

}  // namespace torch_neuronx::inference
