#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_neuronx::distributed {

/// Collectives of several hosts for tests: ranks are threads of this process, hosts are groups of
/// them, connected by gloo.
void bind_network(pybind11::module_& m);

}  // namespace torch_neuronx::distributed
