#include "program/tallies.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "program/python_program.h"
#include "registry/tallies.h"

namespace torch_neuronx::program {
namespace {

namespace py = pybind11;

void set_tallies(py::handle object, const std::vector<std::pair<uint64_t, uint64_t>>& places) {
  const std::shared_ptr<const Program> program = program_of(object);
  std::vector<Tally> found;
  for (const auto& [place, amount] : places) found.push_back({&registry::tally_at(place), amount});
  program->tallies = std::move(found);
}

}  // namespace

void bind_tallies(py::module& m) { m.def("tally", &set_tallies); }

}  // namespace torch_neuronx::program
