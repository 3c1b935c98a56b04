#pragma once

#include <pybind11/pybind11.h>

namespace torch_neuronx::attention {

// attention_forward, attention_backward: for tests and benchmarks, on CPU tensors. Not part of the
// public interface.
void bind_attention(pybind11::module& m);

}  // namespace torch_neuronx::attention
