// From Python data to a Program. The data may come from a file that somebody else made, so every
// number is checked here, and nothing after this has to.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "program/program.h"

namespace torch_neuronx::program {

// `spec`: what torch_neuronx/program/executable.py makes; see there. Throws ValueError.
std::shared_ptr<const Program> build(const pybind11::dict& spec, int depth = 0);

// The class ProgramView and the type Program.
void bind_program(pybind11::module& m);

}  // namespace torch_neuronx::program
