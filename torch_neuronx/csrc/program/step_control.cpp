// Loops that the device decides, and prints: steps that stand between tapes.
#include <torch/csrc/Exceptions.h>

#include <cstring>

#include "program/interrupts.h"
#include "program/tape.h"
#include "program/team.h"

namespace torch_neuronx::program {
namespace {

int32_t value_of(const Frame& frame, const ControlStep::Register& from) {
  if (from.buffer < 0) return static_cast<int32_t>(from.offset);
  int32_t value;
  std::memcpy(&value, frame.at(from.buffer, from.offset), sizeof(value));
  return value;
}

void set(const Frame& frame, const std::vector<ControlStep::Register>& counters, int32_t value) {
  for (const auto& to : counters)
    std::memcpy(frame.at(to.buffer, to.offset), &value, sizeof(value));
}

}  // namespace

void ControlStep::repeat(Frame& frame) const {
  Interrupts interrupts;
  if (is_while) {
    int32_t value = value_of(frame, lower);
    set(frame, counters, value);
    while (value != 0) {
      frame.run_steps(body);
      value = value_of(frame, upper);
      set(frame, counters, value);
      interrupts.poll();
    }
    return;
  }
  const int64_t end = value_of(frame, upper);
  for (int64_t value = value_of(frame, lower); value < end; value += step) {
    set(frame, counters, static_cast<int32_t>(value));
    frame.run_steps(body);
    interrupts.poll();
  }
}

void ControlStep::run(Frame& frame) const {
  for (const int32_t output : outputs) frame.ensure(output);
  if (teams && Team::current() == nullptr) {
    Team::lead([&] { repeat(frame); });
  } else {
    repeat(frame);
  }
}

void PrintStep::run(Frame& frame) const {
  const Geometry& g = view.geometry;
  const size_t bytes = static_cast<size_t>(g.numel * g.itemsize());
  std::string data(bytes, '\0');
  Extents dense(g.sizes.size());
  int64_t stride = 1;
  for (size_t d = dense.size(); d-- > 0;) {
    dense[d] = stride;
    stride *= g.sizes[d];
  }
  frame.ensure(view.buffer);
  copy_view(data.data(), make_geometry(g.dtype, g.sizes, dense), frame.at(view), g);
  const pybind11::gil_scoped_acquire gil;
  PyObject* argument = PyBytes_FromStringAndSize(data.data(), static_cast<Py_ssize_t>(bytes));
  PyObject* done = argument == nullptr ? nullptr : PyObject_CallOneArg(printer.get(), argument);
  Py_XDECREF(argument);
  if (done != nullptr) {
    Py_DECREF(done);
    return;
  }
  python_error error;
  error.persist();
  throw error;
}

}  // namespace torch_neuronx::program
