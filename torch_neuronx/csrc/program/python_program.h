// From the Python object `_C.Program` to what it holds.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "program/program.h"

namespace torch_neuronx::program {

// Throws TypeError if it is something else. The caller keeps `object` alive as long as it runs the
// program: machine code belongs to the object.
std::shared_ptr<const Program> program_of(pybind11::handle object);

}  // namespace torch_neuronx::program
