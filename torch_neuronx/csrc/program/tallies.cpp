#include "program/tallies.h"

#include <pybind11/stl.h>

#include <span>
#include <utility>
#include <vector>

#include "program/python_program.h"

namespace torch_neuronx::program {
namespace {

namespace py = pybind11;

// Python's memory, which is never given back: threads may add to it until the process ends.
std::span<uint64_t> g_numbers;

void keep_tallies(const py::buffer& memory) {
  TORCH_CHECK_VALUE(g_numbers.empty(), "the tallies of this process have their memory");
  const auto& info = *new py::buffer_info(memory.request(/*writable=*/true));
  TORCH_CHECK_VALUE(info.ndim == 1 && info.itemsize == sizeof(uint64_t) &&
                        info.strides[0] == sizeof(uint64_t) &&
                        reinterpret_cast<uintptr_t>(info.ptr) % alignof(uint64_t) == 0,
                    "tallies need one row of 64-bit numbers");
  g_numbers = {static_cast<uint64_t*>(info.ptr), static_cast<size_t>(info.size)};
}

void set_tallies(py::handle object, const std::vector<std::pair<uint64_t, uint64_t>>& places) {
  const std::shared_ptr<const Program> program = program_of(object);
  std::vector<Tally> found;
  for (const auto& [place, amount] : places) {
    TORCH_CHECK_VALUE(place < g_numbers.size(), "there is no tally ", place);
    found.push_back({&g_numbers[place], amount});
  }
  program->tallies = std::move(found);
}

}  // namespace

void bind_tallies(py::module& m) {
  m.def("keep_tallies", &keep_tallies);
  m.def("tally", &set_tallies);
}

}  // namespace torch_neuronx::program
