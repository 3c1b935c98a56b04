// Reading plain Python values; whatever is not what it should be is a ValueError.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "program/program.h"

namespace torch_neuronx::program {

namespace py = pybind11;

int64_t integer(py::handle value, const char* what);
bool boolean(py::handle value, const char* what);
std::string text(py::handle value, const char* what);
at::ScalarType dtype_of(py::handle value, const char* what);
Extents extents(py::handle value, const char* what);
View view_of(py::handle value, const char* what);
// The items of a list or tuple.
std::vector<py::handle> items(py::handle value, const char* what);
py::handle field(const py::dict& spec, const char* name);

}  // namespace torch_neuronx::program
