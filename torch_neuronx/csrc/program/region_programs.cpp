// Regions as Python sees them: what is to be compiled, what came of it, what came by.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "program/program.h"
#include "program/python_program.h"
#include "program/region.h"

namespace py = pybind11;

namespace torch_neuronx::program {

Regions& known_regions() {
  static auto* const regions = new Regions;  // threads may use it to the end of the process
  return *regions;
}

bool Start::is_ready() const {
  return std::any_of(regions.begin(), regions.end(),
                     [](const Region* r) { return r->state == Region::State::kReady; });
}

namespace {

// The program must take and give what the calls do, at the same places.
bool fits(const Program& program, const Description& wanted) {
  std::vector<size_t> fresh;  // calls
  std::vector<int> replaced;  // inputs
  for (const size_t output : wanted.outputs) {
    if (wanted.calls[output].replaces < 0) {
      fresh.push_back(output);
    } else {
      replaced.push_back(wanted.calls[output].replaces);
    }
  }
  if (program.arguments.size() != wanted.inputs.size() ||
      program.results.size() != wanted.outputs.size() || program.outputs.size() != fresh.size() ||
      !program.may_wait || program.device != wanted.core)
    return false;
  for (size_t i = 0; i < fresh.size(); ++i) {
    const Geometry& given = program.buffers[program.results[i]].geometry;
    const auto& call = wanted.calls[fresh[i]];
    if (program.results[i] != program.outputs[i] || given.dtype != call.dtype ||
        at::IntArrayRef(given.sizes) != at::IntArrayRef(call.sizes) ||
        at::IntArrayRef(given.strides) != at::IntArrayRef(call.strides))
      return false;
  }
  for (size_t i = 0; i < replaced.size(); ++i) {
    const Buffer& given = program.buffers[program.results[fresh.size() + i]];
    if (given.kind != BufferKind::kInput || given.index != replaced[i]) return false;
  }
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    const Buffer& taken = program.buffers[program.arguments[i]];
    const Input& input = wanted.inputs[i];
    const bool may_be_written =
        std::find(replaced.begin(), replaced.end(), static_cast<int>(i)) != replaced.end();
    if ((taken.written && !may_be_written) || taken.geometry.dtype != input.dtype ||
        at::IntArrayRef(taken.geometry.sizes) != at::IntArrayRef(input.sizes) ||
        at::IntArrayRef(taken.geometry.strides) != at::IntArrayRef(input.strides))
      return false;
  }
  return true;
}

}  // namespace

namespace {

py::object object_of(const Atom& atom) {
  if (const auto* i = std::get_if<int64_t>(&atom)) return py::int_(*i);
  if (const auto* d = std::get_if<double>(&atom)) return py::float_(*d);
  if (const auto* t = std::get_if<bool>(&atom)) return py::bool_(*t);
  if (const auto* text = std::get_if<std::string>(&atom)) return py::str(*text);
  if (const auto* i = std::get_if<InputRef>(&atom)) return py::make_tuple("input", i->number);
  if (const auto* v = std::get_if<ValueRef>(&atom)) return py::make_tuple("value", v->member);
  return py::none();
}

template <class Numbers>
py::tuple tuple_of(const Numbers& numbers) {
  py::tuple made(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) made[i] = py::int_(numbers[i]);
  return made;
}

void let_go_of_unneeded() {
  std::vector<PyObject*> unneeded;
  {
    const std::lock_guard<std::mutex> lock(g_regions.mutex);
    unneeded.swap(g_regions.unneeded);
  }
  for (PyObject* program : unneeded) Py_DECREF(program);
}

}  // namespace

py::object next_region() {
  let_go_of_unneeded();
  size_t number = 0;
  Description wanted;
  {
    const py::gil_scoped_release released;
    std::unique_lock<std::mutex> lock(g_regions.mutex);
    g_regions.changed.wait(lock, [] { return g_regions.stopped || !g_regions.wanted.empty(); });
    if (!g_regions.stopped) {
      number = g_regions.wanted.front();
      g_regions.wanted.pop_front();
      wanted = g_regions.all.at(number).description;
    }
  }
  if (wanted.calls.empty()) return py::none();
  py::list inputs, calls;
  for (const Input& input : wanted.inputs) {
    inputs.append(py::make_tuple(static_cast<int>(input.dtype), tuple_of(input.sizes),
                                 tuple_of(input.strides)));
  }
  for (const auto& call : wanted.calls) {
    py::list arguments;
    for (const Given& given : call.arguments) {
      py::list items;
      for (const Atom& atom : given.items) items.append(object_of(atom));
      arguments.append(given.is_list ? py::object(items) : py::object(items[0]));
    }
    calls.append(py::make_tuple(call.name, call.overload, arguments, static_cast<int>(call.dtype),
                                tuple_of(call.sizes), tuple_of(call.strides), call.replaces,
                                call.result));
  }
  return py::make_tuple(number, static_cast<int>(wanted.core), inputs, calls,
                        tuple_of(wanted.outputs));
}

void finish_region(size_t number, py::object program) {
  std::shared_ptr<const Program> made;
  if (!program.is_none()) made = program_of(program);
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  const auto found = g_regions.all.find(number);
  TORCH_CHECK_VALUE(found != g_regions.all.end() && found->second.state == Region::State::kWanted,
                    "no region ", number, " is being compiled");
  Region& region = found->second;
  if (made != nullptr && fits(*made, region.description)) {
    region.program_object = program.release().ptr();
    region.program = std::move(made);
    region.state = Region::State::kReady;
    for (Start* start : region.beginnings) start->leads_on = true;
    ++g_regions.stats.compiled;
  } else {
    region.state = Region::State::kGivenUp;
    ++g_regions.stats.given_up;
  }
}

py::list regions_seen() {
  static constexpr const char* names[] = {"seen", "compiling", "compiled", "given up"};
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  py::list all;
  for (const auto& [number, region] : g_regions.all) {
    if (region.runs + region.separately == 0) continue;
    py::list calls;
    for (const auto& call : region.description.calls) {
      std::string name =
          call.overload.empty() ? call.name : c10::str(call.name, ".", call.overload);
      if (call.result > 0) name = c10::str(name, "[", call.result, "]");
      calls.append(
          py::make_tuple(name, static_cast<int>(call.dtype), tuple_of(call.sizes), call.called_at));
    }
    py::dict ended_by;
    for (const auto& [what, times] : region.ended_by) ended_by[py::str(what)] = times;
    all.append(py::dict(
        py::arg("number") = number, py::arg("core") = static_cast<int>(region.description.core),
        py::arg("state") = names[static_cast<int>(region.state)], py::arg("calls") = calls,
        py::arg("outputs") = tuple_of(region.description.outputs), py::arg("runs") = region.runs,
        py::arg("separately") = region.separately, py::arg("ended_by") = ended_by));
  }
  return all;
}

void stop_regions() {
  const std::lock_guard<std::mutex> lock(g_regions.mutex);
  g_regions.stopped = true;
  g_regions.changed.notify_all();
}

}  // namespace torch_neuronx::program
