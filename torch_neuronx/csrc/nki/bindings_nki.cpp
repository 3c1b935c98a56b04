#include "nki/bindings_nki.h"

#include <pybind11/stl.h>

#include "nki/native.h"

namespace torch_neuronx::nki {
namespace {

namespace py = pybind11;

std::vector<py::tuple> native_slots(const std::string& name, const std::vector<int64_t>& params) {
  const Native* native = find_native(name);
  TORCH_CHECK_VALUE(native != nullptr, "there is no native function '", name, "'");
  std::vector<py::tuple> slots;
  for (const NativeSlot& slot : native->declare(params).slots) {
    slots.push_back(py::make_tuple(slot.low, slot.high, slot.written));
  }
  return slots;
}

}  // namespace

void bind_nki(py::module& m) {
  using namespace pybind11::literals;
  m.def("native_slots", &native_slots, "name"_a, "params"_a,
        "What a native function of tapes touches: (low, high, written) of every slot, in bytes");
  m.def("native_names", &native_names, "The names of all native functions of tapes");
}

}  // namespace torch_neuronx::nki
