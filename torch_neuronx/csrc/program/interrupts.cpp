#include "program/interrupts.h"

#include <torch/csrc/Exceptions.h>

namespace torch_neuronx::program {

void Interrupts::look() {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error error;
  error.persist();
  throw error;
}

}  // namespace torch_neuronx::program
