#include "registry/bindings_registry.h"

#include <pybind11/stl.h>

#include "device/state.h"
#include "registry/registry.h"
#include "registry/tallies.h"

namespace py = pybind11;

namespace torch_neuronx::registry {
namespace {

void keep_memory(const py::buffer& memory) {
  auto info = std::make_unique<py::buffer_info>(memory.request(/*writable=*/true));
  TORCH_CHECK_VALUE(info->ndim == 1 && info->itemsize == sizeof(uint64_t) &&
                        info->strides[0] == sizeof(uint64_t) &&
                        reinterpret_cast<uintptr_t>(info->ptr) % alignof(uint64_t) == 0,
                    "tallies need one row of 64-bit numbers");
  keep_tallies({static_cast<uint64_t*>(info->ptr), static_cast<size_t>(info->size)});
  (void)info.release();  // Python's memory is held as long as somebody may add to it
}

}  // namespace

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
  m.def("keep_tallies", &keep_memory);
  m.def("count_failure", [](int index, int status) {
    check_device_index(index);
    count_failure(index, status);
  });
}

}  // namespace torch_neuronx::registry
