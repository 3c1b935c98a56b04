#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::predicting {

// What the thread that predicts operators asks: dispatch/predicting.h.
void bind_predicting(pybind11::module& m);

}  // namespace torch_neuronx::predicting
