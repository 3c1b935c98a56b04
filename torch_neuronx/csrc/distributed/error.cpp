#include "distributed/error.h"

#include <torch/csrc/Exceptions.h>

namespace torch_neuronx::distributed {
namespace {

// The C++ exception around an interrupt (Ctrl-C) has no other text than "python_error".
std::string text_of(const python_error& error) {
  const pybind11::gil_scoped_acquire gil;
  const auto* type = reinterpret_cast<PyTypeObject*>(error.type);
  std::string text = type == nullptr ? "an exception of Python's" : type->tp_name;
  if (error.value == nullptr) return text;
  PyObject* shown = PyObject_Str(error.value);
  const char* words = shown == nullptr ? nullptr : PyUnicode_AsUTF8(shown);
  if (words != nullptr && *words != '\0') text += std::string(": ") + words;
  Py_XDECREF(shown);
  PyErr_Clear();  // of an exception that cannot be shown, its kind is told
  return text;
}

}  // namespace

std::string first_line(const std::exception& error) {
  const auto* python = dynamic_cast<const python_error*>(&error);
  return first_line(python != nullptr ? text_of(*python) : std::string(error.what()));
}

std::string first_line(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return first_line(e);
  }
}

std::string reason_of(const c10::DistBackendError& error) {
  const std::string text = first_line(error);
  return text.starts_with(kErrorPrefix) ? text.substr(kErrorPrefix.size()) : text;
}

}  // namespace torch_neuronx::distributed
