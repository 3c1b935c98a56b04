#include "inference/refuse.h"

#include <omp.h>
#include <torch/csrc/jit/runtime/jit_exception.h>

#include "inference/bindings_inference.h"

namespace torch_neuronx::inference {
namespace {

namespace py = pybind11;
using torch::jit::JITException;

constexpr const char* kModule = "torch_neuronx.inference.errors";
constexpr const char* kClass = "InputError";
constexpr const char* kName = "torch_neuronx.InputError";

// Ours as the Python exception that it names; all others go on to the next translator.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const JITException& error) {
    if (error.getPythonClassName() != kName) throw;
    const py::gil_scoped_acquire gil;
    // Without the trace through TorchScript, which is a method that `trace` has written.
    const std::string text = error.getOriginalMsg().value_or(error.what());
    const py::object type = py::module_::import(kModule).attr(kClass);
    PyErr_SetString(type.ptr(), text.c_str());
  }
}

}  // namespace

void refuse(const std::string& text) {
  throw JITException("NRT_EXEC_BAD_INPUT (status 1002): " + text, kName);
}

void bind_inference(py::module_& m) {
  py::register_exception_translator(&translate);
  m.def("set_thread_share", [](int threads) { omp_set_num_threads(threads < 1 ? 1 : threads); });
}

}  // namespace torch_neuronx::inference
