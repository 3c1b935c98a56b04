#include "distributed/bindings_distributed.h"

#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/backend.h"
#include "distributed/symmetric.h"

namespace py = pybind11;

namespace torch_neuronx::distributed {

void bind_distributed(py::module_& m) {
  m.def("register_symmetric_memory", &register_symmetric_memory);
  // torch._C._distributed_c10d registers the types that are taken and returned.
  m.def(
      "create_process_group",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& name,
         std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<NeuronBackend>(store, rank, size, name, timeout);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("timeout"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_neuronx::distributed
