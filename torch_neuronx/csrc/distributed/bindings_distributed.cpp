#include "distributed/bindings_distributed.h"

#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/backend.h"
#include "distributed/symmetric.h"

namespace py = pybind11;

namespace torch_neuronx::distributed {

void bind_distributed(py::module_& m) {
  // It registers the types that are taken, returned and derived from.
  const auto c10d = py::module_::import("torch._C._distributed_c10d");
  // `torch.distributed.split_group` copies the options of the group that it splits.
  const auto copy = [](const NeuronOptions& self, const py::args&) {
    return c10::make_intrusive<NeuronOptions>(self);
  };
  py::class_<NeuronOptions, c10::intrusive_ptr<NeuronOptions>>(m, "ProcessGroupOptions",
                                                               c10d.attr("Backend").attr("Options"))
      .def("__copy__", copy)
      .def("__deepcopy__", copy);
  py::class_<NeuronBackend, c10::intrusive_ptr<NeuronBackend>>(m, "ProcessGroupNeuron",
                                                               c10d.attr("Backend"))
      .def_property_readonly("options", &NeuronBackend::options)
      // PyTorch calls it in ranks outside of a new group, when groups are bound to a device. The
      // others make theirs without them.
      .def("perform_nocolor_split", [](const NeuronBackend&, const c10::Device&) {});
  m.def("close_process_groups", &close_process_groups, py::call_guard<py::gil_scoped_release>());
  m.def("register_symmetric_memory", &register_symmetric_memory);
  m.def(
      "create_process_group",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& name,
         std::chrono::milliseconds timeout, std::vector<uint64_t> ranks) {
        auto made = c10::make_intrusive<NeuronBackend>(store, rank, size, name, timeout);
        made->options()->global_ranks_in_group = std::move(ranks);
        return made;
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("name"), py::arg("timeout"),
      py::arg("ranks") = std::vector<uint64_t>{}, py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_neuronx::distributed
