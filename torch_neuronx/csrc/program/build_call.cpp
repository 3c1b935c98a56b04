// Steps that run other programs: whether their operands and results fit each other.
#include "program/build.h"
#include "program/builder.h"

namespace torch_neuronx::program {
namespace {

void check_condition(const Program& body) {
  TORCH_CHECK_VALUE(body.results.size() == 1, "the condition of a loop has ", body.results.size(),
                    " results");
  const Geometry& g = body.buffers[body.results[0]].geometry;
  TORCH_CHECK_VALUE(g.numel == 1 && g.dtype == at::kBool, "the condition of a loop is no pred");
}

// A loop copies its variables; everything else lends its operands as they are.
void check_operands(const CallStep& step, const Program& body) {
  TORCH_CHECK_VALUE(body.arguments.size() == step.operands.size(), "a body takes ",
                    body.arguments.size(), " operands, got ", step.operands.size());
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Geometry& wanted = body.buffers[body.arguments[i]].geometry;
    const Geometry& given = step.operands[i].geometry;
    const bool strides = wanted.strides == given.strides || wanted.numel == 0;
    TORCH_CHECK_VALUE(wanted.dtype == given.dtype && wanted.sizes == given.sizes && strides,
                      "operand ", i, " of a body is ",
                      describe(given.dtype, given.sizes, given.strides), ", it takes ",
                      describe(wanted.dtype, wanted.sizes, wanted.strides));
  }
}

void check_results(const CallStep& step, const Program& body) {
  TORCH_CHECK_VALUE(body.results.size() == step.outs.size(), "a body has ", body.results.size(),
                    " results, the program takes ", step.outs.size());
  for (size_t r = 0; r < step.outs.size(); ++r) {
    const Geometry& made = body.buffers[body.results[r]].geometry;
    const Geometry& taken = step.outs[r].geometry;
    TORCH_CHECK_VALUE(made.dtype == taken.dtype && made.sizes == taken.sizes, "result ", r,
                      " of a body is ", describe(made.dtype, made.sizes), ", the program takes ",
                      describe(taken.dtype, taken.sizes));
  }
}

// Both bodies of a loop see the same copies of its variables.
void check_variables(const CallStep& step) {
  TORCH_CHECK_VALUE(step.outs.size() == step.operands.size(), "a loop has ", step.operands.size(),
                    " variables but ", step.outs.size(), " results");
  const Program &condition = *step.bodies[0], &body = *step.bodies[1];
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Geometry& one = condition.buffers[condition.arguments[i]].geometry;
    const Geometry& other = body.buffers[body.arguments[i]].geometry;
    TORCH_CHECK_VALUE(one.strides == other.strides, "the bodies of a loop take variable ", i,
                      " with different strides");
  }
}

void check_call(const CallStep& step, const std::string& kind) {
  using Kind = CallStep::Kind;
  const size_t bodies = step.bodies.size();
  if (step.kind == Kind::kWhile) {
    TORCH_CHECK_VALUE(bodies == 2, "a loop has ", bodies, " bodies instead of 2");
    check_condition(*step.bodies[0]);
  } else {
    TORCH_CHECK_VALUE(step.kind == Kind::kCond ? bodies > 0 : bodies == 1, "a ", kind, " has ",
                      bodies, " bodies");
  }
  TORCH_CHECK_VALUE(step.selector.has_value() == (step.kind == Kind::kCond),
                    "a choice has a selector, and nothing else has one");
  if (step.selector) {
    const Geometry& g = step.selector->geometry;
    TORCH_CHECK_VALUE(g.numel == 1 && (g.dtype == at::kBool || g.dtype == at::kInt),
                      "a selector must be one pred or s32");
    TORCH_CHECK_VALUE(g.dtype != at::kBool || bodies == 2, "a pred chooses among ", bodies);
  }
  for (size_t i = 0; i < bodies; ++i) {
    const Program& body = *step.bodies[i];
    check_operands(step, body);
    if (step.kind != Kind::kWhile || i == 1) check_results(step, body);
  }
  if (step.kind == Kind::kWhile) {
    check_variables(step);
  }
}

}  // namespace

std::unique_ptr<Step> Builder::make_call(const py::dict& spec, const std::string& kind,
                                         std::string name, std::string loc) {
  using Kind = CallStep::Kind;
  auto step = std::make_unique<CallStep>(std::move(name), std::move(loc));
  TORCH_CHECK_VALUE(kind == "call" || kind == "cond" || kind == "while", "a step is of kind '",
                    kind, "'");
  step->kind = kind == "call" ? Kind::kCall : kind == "cond" ? Kind::kCond : Kind::kWhile;
  for (const py::handle body : items(field(spec, "bodies"), "bodies")) {
    TORCH_CHECK_VALUE(PyDict_Check(body.ptr()), "a body must be a dict");
    step->bodies.push_back(program::build(py::reinterpret_borrow<py::dict>(body), depth_ + 1));
    TORCH_CHECK_VALUE(step->bodies.back()->device == program_->device,
                      "a body is for another device than its program");
  }
  for (const py::handle item : items(field(spec, "operands"), "operands"))
    step->operands.push_back(view(item, "an operand", false));
  for (const py::handle item : items(field(spec, "outs"), "outs"))
    step->outs.push_back(view(item, "a result", true));
  step->selector = optional_view(field(spec, "selector"), "the selector", false);
  check_call(*step, kind);
  for (const auto& body : step->bodies) {
    note_writes(*step, *body);
    program_->packs = program_->packs || body->packs;
  }
  return step;
}

// What a body writes to its arguments is written by this program; a loop writes to its copies.
void Builder::note_writes(const CallStep& step, const Program& body) {
  if (step.kind == CallStep::Kind::kWhile) return;
  for (const int32_t argument : body.written_arguments) touch(step.operands[argument], true);
}

}  // namespace torch_neuronx::program
