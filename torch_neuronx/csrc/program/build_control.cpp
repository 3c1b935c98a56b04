// Loops in a program, and prints: the registers they read, the steps they repeat.
#include "program/build.h"
#include "program/builder.h"
#include "program/tape.h"

namespace torch_neuronx::program {
namespace {

constexpr int kMostLoops = 32;  // around a step

bool fits_32(int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }

}  // namespace

std::unique_ptr<Step> Builder::make_loop_of_steps(const py::dict& spec, bool is_while,
                                                  std::string name, std::string loc) {
  auto step = std::make_unique<ControlStep>(std::move(name), std::move(loc));
  Outputs outputs(*this);
  TORCH_CHECK_VALUE(loops_ < kMostLoops, "loops are nested more than ", kMostLoops, " deep");
  ++loops_;
  // (buffer, element), in elements of s32, or a number.
  const auto at = [&](py::handle value, bool written) {
    ControlStep::Register result;
    if (PyLong_Check(value.ptr())) {
      result = {-1, integer(value, "the end of a loop")};
      TORCH_CHECK_VALUE(!written && fits_32(result.offset), "a loop ends at ", result.offset);
      return result;
    }
    const auto parts = items(value, "a register");
    TORCH_CHECK_VALUE(parts.size() == 2, "a register has ", parts.size(), " parts instead of 2");
    result.buffer = buffer_id(integer(parts[0], "the buffer of a register"));
    const int64_t element = integer(parts[1], "a register");
    TORCH_CHECK_VALUE(element >= 0 && element < int64_t(1) << 56, "there is no register ", element);
    result.offset = 4 * element;
    touch(result.buffer, result.offset, result.offset + 4, written);
    return result;
  };
  step->is_while = is_while;
  for (const py::handle item : items(field(spec, "counters"), "counters")) {
    step->counters.push_back(at(item, true));
  }
  TORCH_CHECK_VALUE(!step->counters.empty(), "a loop without a counter");
  step->lower = at(field(spec, "lower"), false);
  step->upper = at(field(spec, "upper"), false);
  step->step = integer(field(spec, "step"), "the step of a loop");
  TORCH_CHECK_VALUE(step->step >= 1 && fits_32(step->step), "a loop has the step ", step->step);
  TORCH_CHECK_VALUE(!is_while || (step->lower.buffer >= 0 && step->upper.buffer >= 0),
                    "a loop that ends at 0 needs registers");
  bool parallel = false, only = true;
  for (const py::handle item : items(field(spec, "body"), "the body of a loop")) {
    step->body.push_back(make_step(item));
    const Step* made = step->body.back().get();
    if (const auto* tape = dynamic_cast<const TapeStep*>(made)) {
      parallel = parallel || tape->any_parallel;
    } else if (const auto* loop = dynamic_cast<const ControlStep*>(made)) {
      parallel = parallel || loop->teams;
      only = only && loop->needs_no_threads;
    } else {
      only = only && dynamic_cast<const PrintStep*>(made) != nullptr;
    }
  }
  --loops_;
  step->needs_no_threads = only;
  step->teams = parallel && only;
  step->outputs = std::move(outputs.ids);
  return step;
}

std::unique_ptr<Step> Builder::make_print(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<PrintStep>(std::move(name), std::move(loc));
  step->view = view(field(spec, "view"), "what is printed", false);
  const py::handle printer = field(spec, "printer");
  TORCH_CHECK_VALUE(PyCallable_Check(printer.ptr()) != 0, "what prints cannot be called");
  step->printer = keep(printer.ptr());
  return step;
}

}  // namespace torch_neuronx::program
