#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_neuronx::distributed {

/// distributed_reduce and distributed_copy: reduce.h for tests and benchmarks.
void bind_reduce(pybind11::module_& m);

}  // namespace torch_neuronx::distributed
