#include "registry/bindings_registry.h"

#include <pybind11/stl.h>

#include "device/state.h"
#include "registry/registry.h"

namespace py = pybind11;

namespace torch_neuronx::registry {

void bind_registry(py::module& m) {
  m.def(
      "describe_process",
      [](std::string directory, std::string tag, std::string target, std::string runtime_version,
         uint64_t lnc, uint64_t chips, std::vector<uint64_t> cores) {
        describe({std::move(directory), std::move(tag), std::move(target),
                  std::move(runtime_version), lnc, chips, std::move(cores)});
      },
      py::kw_only(), py::arg("directory"), py::arg("tag"), py::arg("target"),
      py::arg("runtime_version"), py::arg("lnc"), py::arg("chips"), py::arg("cores"));
  m.def("registry_path", &path);
  m.def("close_registry", &close);
  m.def("count_failure", [](int index, int status) {
    check_device_index(index);
    count_failure(index, status);
  });
}

}  // namespace torch_neuronx::registry
