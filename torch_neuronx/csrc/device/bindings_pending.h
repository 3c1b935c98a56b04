#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx {

/// Adds TestCompletion, work that a test finishes by hand, to the extension module.
void bind_pending(pybind11::module_& m);

}  // namespace torch_neuronx
