#include "program/regions.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "device/faults.h"
#include "device/profiler.h"
#include "program/collected.h"
#include "program/enqueued.h"
#include "program/program.h"
#include "program/python_program.h"

namespace py = pybind11;

namespace torch_neuronx::program {
namespace {

using queue::QueuedCall;

constexpr size_t kMostCalls = 24;
constexpr size_t kMostRegions = 256;
// One that only ended because nothing more was enqueued may be longer the next time.
constexpr int kTimesBeforeCompiling = 2, kTimesIfIdle = 5;

// A region without the addresses of its first call.
struct Description {
  c10::DeviceIndex core = 0;
  std::vector<Input> inputs;
  struct Call {
    std::string name, overload;
    std::vector<Given> arguments;
    at::ScalarType dtype;
    c10::DimVector sizes;
    std::string called_at;  // the user's line, where lines are kept
  };
  std::vector<Call> calls;
  std::vector<size_t> outputs;
};

// What is known of a region.
struct Region {
  enum class State { kSeen, kWanted, kReady, kGivenUp };
  State state = State::kSeen;
  int seen = 0;
  Description description;
  std::vector<queue::SettledPtr> kinds;  // so that their addresses stay theirs
  std::shared_ptr<const Program> program;
  std::unique_ptr<char[]> scratch;
  // Since reset_region_stats().
  int64_t runs = 0, separately = 0;
  std::map<std::string, int64_t> ended_by;
};

std::mutex g_mutex;
std::condition_variable g_changed;
bool g_stopped = false;
std::map<std::vector<uint64_t>, size_t> g_numbers;
std::deque<Region> g_regions;  // by number; addresses are stable
std::deque<size_t> g_wanted;   // numbers
RegionStats g_stats;
std::atomic<size_t> g_low_threshold{0};
std::atomic<bool> g_skips_unread{true};

Description description_of(const Collected& found, const std::vector<size_t>& outputs) {
  Description made{found.members[0].call->core(), found.inputs, {}, outputs};
  for (const Member& member : found.members) {
    const auto& name = member.call->op().operator_name();
    made.calls.push_back({name.name.substr(6), name.overload_name, member.arguments, member.dtype,
                          member.sizes, member.call->called_at});
  }
  return made;
}

// Its operators in their order, for profiles.
std::string names_of(const Collected& found) {
  std::string names;
  for (const Member& member : found.members)
    names += (names.empty() ? "" : ", ") + member.call->op().operator_name().name;
  return names;
}

// The region of these calls; null where there are too many others.
Region* region_of(const Collected& found, const std::vector<size_t>& outputs) {
  const auto key = found.key(outputs);
  const auto known = g_numbers.find(key);
  if (known != g_numbers.end()) return &g_regions[known->second];
  if (g_regions.size() == kMostRegions) return nullptr;
  g_numbers[key] = g_regions.size();
  Region& region = g_regions.emplace_back();
  region.description = description_of(found, outputs);
  for (const Member& member : found.members) region.kinds.push_back(member.call->settled());
  return &region;
}

std::string ender(queue::Work& work) {
  const QueuedCall* call = work.as_call();
  return call == nullptr ? work.name() : c10::toString(call->op().operator_name());
}

// Writes the lines of this time down where an earlier time had none.
void keep_lines(Region& region, const Collected& found) {
  auto& calls = region.description.calls;
  for (size_t i = 0; i < calls.size(); ++i)
    if (calls[i].called_at.empty()) calls[i].called_at = found.members[i].call->called_at;
}

void run(Region& region, const Collected& found, const std::vector<size_t>& outputs) {
  const Program& program = *region.program;
  LentMemory memory;
  for (const Input& input : found.inputs) {
    const auto& [start, bytes] = found.storages[static_cast<size_t>(input.storage)];
    memory.add_argument(input.data, start, bytes, /*written=*/false);
  }
  for (const size_t output : outputs)
    memory.add_result(found.members[output].data, found.members[output].bytes);
  if (program.scratch_bytes > 0)
    memory.scratch.push_back({region.scratch.get(), static_cast<size_t>(program.scratch_bytes)});
  found.members[0].call->enter_thread();
  memory.run(program);
}

// Runs a region that begins with the next piece of work; see queue::RegionRunner.
queue::RegionOutcome run_region(queue::LookAt at) {
  if (faults::armed()) return {0, 1};  // each operator is to be reached
  const size_t low = g_low_threshold.load(std::memory_order_relaxed);
  if (low > 0 && at(low) == nullptr) return {0, 1};
  Collected found;
  bool idle = false, full = false;
  queue::Work* work = nullptr;
  for (;;) {
    full = found.members.size() == kMostCalls;
    if (full) break;
    work = at(found.members.size());
    idle = work == nullptr;
    const QueuedCall* call = idle ? nullptr : work->as_call();
    if (call == nullptr || !found.add(*call)) break;
  }
  const size_t count = found.members.size();
  if (count < 2) return {0, count};
  const bool skips = g_skips_unread.load(std::memory_order_relaxed);
  const auto outputs = found.kept([&](size_t k) { return at(count + k); }, skips);
  if (outputs.empty()) return {0, count};
  Region* region = nullptr;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    region = region_of(found, outputs);
    if (region == nullptr) return {0, count};
    keep_lines(*region, found);
    ++region->ended_by[full ? "full" : idle ? "idle" : ender(*work)];
    if (region->state == Region::State::kSeen &&
        ++region->seen >= (idle ? kTimesIfIdle : kTimesBeforeCompiling)) {
      region->state = Region::State::kWanted;
      g_wanted.push_back(g_numbers[found.key(outputs)]);
      g_changed.notify_all();
    }
    if (region->state != Region::State::kReady) {
      ++region->separately;
      return {0, count};
    }
    ++region->runs;
    ++g_stats.regions;
    g_stats.calls += static_cast<int64_t>(count);
    g_stats.unwritten += static_cast<int64_t>(count - outputs.size());
    ++(full ? g_stats.ended_full : idle ? g_stats.ended_idle : g_stats.ended_boundary);
  }
  static const std::string activity_name = "region";
  ActivityScope activity(activity_name);
  activity.on(found.members[0].call->core());
  if (profiling()) ActivityScope::note({{"operators", names_of(found)}});
  try {
    run(*region, found, outputs);
  } catch (const std::exception& error) {
    TORCH_WARN("a region of ", count, " operators is given up: ", error.what());
    const std::lock_guard<std::mutex> lock(g_mutex);
    region->state = Region::State::kGivenUp;
    ++g_stats.given_up;
    return {0, count};
  }
  return {count, 0};
}

// The program must take and give what the calls do, at the same places.
bool fits(const Program& program, const Description& wanted) {
  if (program.arguments.size() != wanted.inputs.size() ||
      program.results.size() != wanted.outputs.size() ||
      program.outputs.size() != wanted.outputs.size() || !program.may_wait ||
      program.device != wanted.core)
    return false;
  for (size_t i = 0; i < wanted.outputs.size(); ++i) {
    const Geometry& given = program.buffers[program.results[i]].geometry;
    const auto& call = wanted.calls[wanted.outputs[i]];
    if (program.results[i] != program.outputs[i] || given.dtype != call.dtype ||
        at::IntArrayRef(given.sizes) != at::IntArrayRef(call.sizes) || !given.contiguous)
      return false;
  }
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    const Buffer& taken = program.buffers[program.arguments[i]];
    const Input& input = wanted.inputs[i];
    if (taken.written || taken.geometry.dtype != input.dtype ||
        at::IntArrayRef(taken.geometry.sizes) != at::IntArrayRef(input.sizes) ||
        at::IntArrayRef(taken.geometry.strides) != at::IntArrayRef(input.strides))
      return false;
  }
  return true;
}

}  // namespace

void install_regions() { queue::set_region_runner(&run_region); }

RegionStats region_stats() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_stats;
}
void reset_region_stats() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_stats = {};
  for (Region& region : g_regions) {
    region.runs = region.separately = 0;
    region.ended_by.clear();
  }
}
void set_low_threshold(size_t calls) { g_low_threshold = calls; }
void set_skips_unread(bool on) { g_skips_unread = on; }

namespace {

py::object object_of(const Atom& atom) {
  if (const auto* i = std::get_if<int64_t>(&atom)) return py::int_(*i);
  if (const auto* d = std::get_if<double>(&atom)) return py::float_(*d);
  if (const auto* t = std::get_if<bool>(&atom)) return py::bool_(*t);
  if (const auto* text = std::get_if<std::string>(&atom)) return py::str(*text);
  if (const auto* i = std::get_if<InputRef>(&atom)) return py::make_tuple("input", i->number);
  if (const auto* v = std::get_if<ValueRef>(&atom)) return py::make_tuple("value", v->call);
  return py::none();
}

template <class Numbers>
py::tuple tuple_of(const Numbers& numbers) {
  py::tuple made(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) made[i] = py::int_(numbers[i]);
  return made;
}

}  // namespace

py::object next_region() {
  size_t number = 0;
  Description wanted;
  {
    const py::gil_scoped_release released;
    std::unique_lock<std::mutex> lock(g_mutex);
    g_changed.wait(lock, [] { return g_stopped || !g_wanted.empty(); });
    if (!g_stopped) {
      number = g_wanted.front();
      g_wanted.pop_front();
      wanted = g_regions[number].description;
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
                                tuple_of(call.sizes)));
  }
  return py::make_tuple(number, static_cast<int>(wanted.core), inputs, calls,
                        tuple_of(wanted.outputs));
}

void finish_region(size_t number, py::object program) {
  std::shared_ptr<const Program> made;
  if (!program.is_none()) made = program_of(program);
  const std::lock_guard<std::mutex> lock(g_mutex);
  TORCH_CHECK_VALUE(number < g_regions.size() && g_regions[number].state == Region::State::kWanted,
                    "no region ", number, " is being compiled");
  Region& region = g_regions[number];
  if (made != nullptr && fits(*made, region.description)) {
    program.inc_ref();  // machine code belongs to the object; regions live to the end
    region.scratch = std::make_unique<char[]>(static_cast<size_t>(made->scratch_bytes));
    region.program = std::move(made);
    region.state = Region::State::kReady;
    ++g_stats.compiled;
  } else {
    region.state = Region::State::kGivenUp;
    ++g_stats.given_up;
  }
}

py::list regions_seen() {
  static constexpr const char* names[] = {"seen", "compiling", "compiled", "given up"};
  const std::lock_guard<std::mutex> lock(g_mutex);
  py::list all;
  for (size_t number = 0; number < g_regions.size(); ++number) {
    const Region& region = g_regions[number];
    if (region.runs + region.separately == 0) continue;
    py::list calls;
    for (const auto& call : region.description.calls) {
      const std::string name =
          call.overload.empty() ? call.name : c10::str(call.name, ".", call.overload);
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
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_stopped = true;
  g_changed.notify_all();
}

}  // namespace torch_neuronx::program
