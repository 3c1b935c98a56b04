#include "program/regions.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "device/profiler.h"
#include "device/state.h"
#include "memory/allocator.h"
#include "memory/ledger.h"
#include "program/program.h"
#include "program/python_program.h"
#include "queue/queue.h"
#include "queue/queued_call.h"

namespace py = pybind11;

namespace torch_neuronx::program {
namespace {

using queue::QueuedCall;
using queue::Result;

constexpr size_t kMostCalls = 24;
// Smaller results stay in the caches between two calls, and a program would gain nothing.
constexpr int64_t kLeastBytes = 64 << 10;
constexpr size_t kMostRegions = 256;
// One that only ended because nothing more was enqueued may be longer the next time.
constexpr int kTimesBeforeCompiling = 2, kTimesIfIdle = 5;

// Operators whose compiled form gives the same bits in float32, bfloat16 and float16. That is
// tested (tests/device/test_eager_regions.py); those with `alpha` only where that is 1.
constexpr std::string_view kSameBits[] = {
    "aten::abs",        "aten::add.Tensor",
    "aten::cat",        "aten::ceil",
    "aten::copy_",      "aten::copysign.Tensor",
    "aten::div.Tensor", "aten::eq.Scalar",
    "aten::eq.Tensor",  "aten::floor",
    "aten::ge.Scalar",  "aten::ge.Tensor",
    "aten::gt.Scalar",  "aten::gt.Tensor",
    "aten::hardtanh",   "aten::le.Scalar",
    "aten::le.Tensor",  "aten::leaky_relu",
    "aten::lt.Scalar",  "aten::lt.Tensor",
    "aten::mul.Tensor", "aten::neg",
    "aten::reciprocal", "aten::relu",
    "aten::round",      "aten::sign",
    "aten::sub.Tensor", "aten::threshold_backward",
    "aten::trunc",      "aten::where.self",
};

bool has_same_bits(const QueuedCall& call) {
  thread_local std::unordered_map<const queue::Signature*, bool> known;
  const auto [found, is_new] = known.try_emplace(&call.signature(), false);
  if (is_new) {
    const std::string name = c10::toString(call.op().operator_name());
    found->second = std::binary_search(std::begin(kSameBits), std::end(kSameBits), name);
  }
  return found->second;
}

bool is_known_type(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kBool;
}

// All of one type, but for a condition. Where types are mixed, bits were not compared.
bool has_one_type(const std::vector<queue::Operand>& operands) {
  std::optional<at::ScalarType> type;
  for (const queue::Operand& operand : operands) {
    if (operand.dtype == at::kBool) continue;
    if (type && *type != operand.dtype) return false;
    type = operand.dtype;
  }
  return type.has_value();
}

struct Input {
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  const void* data;
  int storage;  // of the region
  bool operator==(const Input& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides &&
           data == other.data;
  }
};
struct InputRef {
  size_t number;
};
struct ValueRef {  // what an earlier call of the region gave
  size_t call;
};
struct Given;
using Atom = std::variant<std::monostate, int64_t, double, bool, InputRef, ValueRef>;
struct Given {  // an argument
  std::vector<Atom> items;
  bool is_list = false;
};

struct Member {
  const QueuedCall* call;
  std::vector<Given> arguments;
  // What it gives: all of a storage, dense.
  at::ScalarType dtype;
  c10::DimVector sizes, strides;
  void* data;
  size_t bytes;
  uint64_t serial;
};

struct Range {
  const char* begin;
  const char* end;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};
Range range_of(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  return {begin, begin + bytes};
}

// Calls that can run as one program, in the order of the queue.
class Collected {
 public:
  // False if the call can't take part behind those that are there.
  bool add(const QueuedCall& call);
  // Which calls' results somebody can still read. `later`: the work behind, null behind the last.
  std::vector<size_t> kept(const std::function<queue::Work*(size_t)>& later) const;
  std::vector<uint64_t> key(const std::vector<size_t>& outputs) const;

  std::vector<Member> members;
  std::vector<Input> inputs;
  std::vector<std::pair<void*, size_t>> storages;  // that the inputs lie in

 private:
  std::optional<Atom> tensor(const QueuedCall& call, size_t number, std::vector<Input>* fresh);
  static std::optional<Atom> constant(const c10::IValue& value);
};

std::optional<Atom> Collected::constant(const c10::IValue& value) {
  if (value.isNone()) return Atom{};
  if (value.isBool()) return Atom{value.toBool()};
  if (value.isInt()) return Atom{value.toInt()};
  if (value.isDouble()) return Atom{value.toDouble()};
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor& t = value.toTensor();
    // A number of Python's that PyTorch made a tensor of.
    if (!t.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
    if (t.scalar_type() == at::kDouble) return Atom{*t.const_data_ptr<double>()};
    if (t.scalar_type() == at::kLong) return Atom{*t.const_data_ptr<int64_t>()};
  }
  return std::nullopt;
}

std::optional<Atom> Collected::tensor(const QueuedCall& call, size_t number,
                                      std::vector<Input>* fresh) {
  const queue::Operand& operand = call.settled()->operands[number];
  const auto& [start, bytes] = call.storages()[operand.storage];
  if (operand.wrapped_number || !is_known_type(operand.dtype)) return std::nullopt;
  // The last that wrote there counts.
  for (size_t m = members.size(); m-- > 0;) {
    const Member& member = members[m];
    if (!range_of(member.data, member.bytes).overlaps(range_of(start, bytes))) continue;
    const bool whole = member.data == start && call.offsets()[number] == 0 &&
                       member.dtype == operand.dtype && member.sizes == operand.sizes &&
                       member.strides == operand.strides;
    if (!whole) return std::nullopt;
    return Atom{ValueRef{m}};
  }
  const auto itemsize = static_cast<int64_t>(c10::elementSize(operand.dtype));
  Input input{operand.dtype, operand.sizes, operand.strides,
              static_cast<const char*>(start) + call.offsets()[number] * itemsize, -1};
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i] == input) return Atom{InputRef{i}};
  for (size_t i = 0; i < fresh->size(); ++i)
    if ((*fresh)[i] == input) return Atom{InputRef{inputs.size() + i}};
  const std::pair<void*, size_t> storage{start, bytes};
  const auto known = std::find(storages.begin(), storages.end(), storage);
  input.storage = static_cast<int>(known - storages.begin());
  if (known == storages.end()) storages.push_back(storage);
  fresh->push_back(std::move(input));
  return Atom{InputRef{inputs.size() + fresh->size() - 1}};
}

bool Collected::add(const QueuedCall& call) {
  const auto& settled = *call.settled();
  if (!has_same_bits(call) || settled.returns.size() != 1 || settled.returns[0].size() != 1 ||
      settled.draws != 0)
    return false;
  if (!members.empty() && !call.enters_as(*members[0].call)) return false;
  const bool copies = call.signature().returns[0] >= 0;
  if (!copies && !has_one_type(settled.operands)) return false;
  Member member;
  member.call = &call;
  if (copies) {  // aten::copy_: all of a storage, by another tensor
    const queue::Operand& to = settled.operands[0];
    const auto& [start, bytes] = call.storages()[to.storage];
    if (!settled.memory.empty() || settled.operands.size() != 2 || call.offsets()[0] != 0 ||
        settled.operands[1].storage == to.storage)
      return false;
    member.dtype = to.dtype;
    member.sizes = to.sizes;
    member.strides = to.strides;
    member.data = start;
    member.bytes = bytes;
    member.serial = call.storage_serial(to.storage);
  } else {
    const Result& result = settled.returns[0][0];
    if (result.kind != Result::Kind::kNew || result.allocation < 0 || result.offset != 0)
      return false;
    const Allocation& memory = call.memory()[static_cast<size_t>(result.allocation)];
    member.dtype = result.geometry.dtype;
    member.sizes = result.geometry.sizes;
    member.strides = result.geometry.strides;
    member.data = memory.pointer;
    member.bytes = result.bytes;
    member.serial = memory.serial;
  }
  const int64_t numel = c10::multiply_integers(member.sizes);
  const size_t size = static_cast<size_t>(numel) * c10::elementSize(member.dtype);
  // Contiguous and all of its storage: no gaps that keep what was there.
  if (!is_known_type(member.dtype) || size != member.bytes ||
      member.bytes < static_cast<size_t>(kLeastBytes) || member.serial == 0)
    return false;
  int64_t stride = 1;
  for (size_t d = member.sizes.size(); d-- > 0;) {
    if (member.sizes[d] != 1 && member.strides[d] != stride) return false;
    stride *= member.sizes[d];
  }

  const size_t storages_before = storages.size();
  std::vector<Input> fresh;
  const auto fails = [&] {
    storages.resize(storages_before);
    return false;
  };
  const auto& arguments = call.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    Given& given = member.arguments.emplace_back();
    given.is_list = call.signature().arguments[i].role == queue::Argument::Role::kTensorList;
    if (copies && i == 0) {
      given.items.push_back(Atom{});
      continue;
    }
    bool found = false;
    for (const queue::Place& place : settled.places) {
      if (place.argument != i) continue;
      found = true;
      const auto atom = tensor(call, place.tensor, &fresh);
      if (!atom) return fails();
      given.items.push_back(*atom);
    }
    if (found) continue;
    const auto atom = constant(arguments[i]);
    if (!atom || given.is_list) return fails();
    if (call.signature().arguments[i].alpha &&
        !(arguments[i].isInt() && arguments[i].toInt() == 1) &&
        !(arguments[i].isDouble() && arguments[i].toDouble() == 1.0))
      return fails();
    given.items.push_back(*atom);
  }
  // Its memory may have been that of an input, which the program would read later or in between.
  const Range written = range_of(member.data, member.bytes);
  for (const auto& [start, bytes] : storages)
    if (written.overlaps(range_of(start, bytes))) return fails();
  inputs.insert(inputs.end(), fresh.begin(), fresh.end());
  members.push_back(std::move(member));
  return true;
}

std::vector<size_t> Collected::kept(const std::function<queue::Work*(size_t)>& later) const {
  std::vector<size_t> outputs;
  for (size_t m = 0; m < members.size(); ++m) {
    const Member& member = members[m];
    const Range range = range_of(member.data, member.bytes);
    // Memory that a later call of the region got was free by then, and its readers are in between.
    const bool again = std::any_of(
        members.begin() + static_cast<std::ptrdiff_t>(m) + 1, members.end(),
        [&](const Member& next) { return range.overlaps(range_of(next.data, next.bytes)); });
    if (again) continue;
    bool dead = !arena(member.call->core()).is_in_use(member.data, member.serial);
    // What was freed may have readers that were enqueued before.
    for (size_t k = 0; dead; ++k) {
      queue::Work* work = later(k);
      if (work == nullptr) break;
      const QueuedCall* call = work->as_call();
      if (call == nullptr) {
        dead = false;
        break;
      }
      for (size_t s = 0; s < call->storages().size(); ++s) {
        if (call->storages()[s].first == member.data && call->storage_serial(s) == member.serial)
          dead = false;
      }
    }
    if (!dead) outputs.push_back(m);
  }
  return outputs;
}

std::vector<uint64_t> Collected::key(const std::vector<size_t>& outputs) const {
  std::vector<uint64_t> key{static_cast<uint64_t>(members[0].call->core())};
  for (const Member& member : members) {
    // Kinds of calls are known by their address; a region keeps those that it was made of.
    key.push_back(reinterpret_cast<uint64_t>(member.call->settled().get()));
    for (const Given& given : member.arguments) {
      key.push_back(given.items.size());
      for (const Atom& atom : given.items) {
        key.push_back(atom.index());
        if (const auto* i = std::get_if<int64_t>(&atom)) key.push_back(static_cast<uint64_t>(*i));
        if (const auto* d = std::get_if<double>(&atom)) {
          uint64_t bits = 0;
          std::memcpy(&bits, d, sizeof bits);
          key.push_back(bits);
        }
        if (const auto* t = std::get_if<bool>(&atom)) key.push_back(*t);
        if (const auto* i = std::get_if<InputRef>(&atom)) key.push_back(i->number);
        if (const auto* v = std::get_if<ValueRef>(&atom)) key.push_back(v->call);
      }
    }
  }
  for (const Input& input : inputs) {
    key.push_back(static_cast<uint64_t>(input.dtype));
    for (const int64_t size : input.sizes) key.push_back(static_cast<uint64_t>(size));
    for (const int64_t stride : input.strides) key.push_back(static_cast<uint64_t>(stride));
  }
  for (const size_t output : outputs) key.push_back(output);
  return key;
}

// What is known of a region.
struct Region {
  enum class State { kSeen, kWanted, kReady, kGivenUp };
  State state = State::kSeen;
  int seen = 0;
  std::vector<queue::SettledPtr> kinds;  // so that their addresses stay theirs
  std::shared_ptr<const Program> program;
  std::unique_ptr<char[]> scratch;
};

// A region that is to be compiled, without the addresses of its first call.
struct Wanted {
  int64_t number;
  c10::DeviceIndex core;
  std::vector<Input> inputs;
  struct Call {
    std::string name, overload;
    std::vector<Given> arguments;
    at::ScalarType dtype;
    c10::DimVector sizes;
  };
  std::vector<Call> calls;
  std::vector<size_t> outputs;
};

std::mutex g_mutex;
std::condition_variable g_changed;
bool g_stopped = false;
std::map<std::vector<uint64_t>, int64_t> g_numbers;
std::deque<Region> g_regions;  // by number; addresses are stable
std::deque<Wanted> g_wanted;
RegionStats g_stats;

Wanted wanted_of(int64_t number, const Collected& found, const std::vector<size_t>& outputs) {
  Wanted wanted{number, found.members[0].call->core(), found.inputs, {}, outputs};
  for (const Member& member : found.members) {
    const auto& name = member.call->op().operator_name();
    wanted.calls.push_back(
        {name.name.substr(6), name.overload_name, member.arguments, member.dtype, member.sizes});
  }
  return wanted;
}

void run(Region& region, const Collected& found, const std::vector<size_t>& outputs) {
  const Program& program = *region.program;
  const c10::Device device(kNeuron, program.device);
  std::vector<c10::Storage> storages;
  const auto lend = [&](void* start, size_t bytes) {
    storages.push_back(make_storage(bytes, borrow_block(start, device), device_allocator()));
    return storages.back().unsafeGetStorageImpl();
  };
  std::vector<c10::StorageImpl*> owners;
  for (const auto& [start, bytes] : found.storages) owners.push_back(lend(start, bytes));
  c10::SmallVector<Argument, 8> arguments, targets;
  for (const Input& input : found.inputs) {
    arguments.push_back({static_cast<char*>(const_cast<void*>(input.data)),
                         owners[static_cast<size_t>(input.storage)], true});
  }
  for (const size_t output : outputs) {
    const Member& member = found.members[output];
    targets.push_back({static_cast<char*>(member.data), lend(member.data, member.bytes), true});
  }
  Allocations scratch;
  if (program.scratch_bytes > 0)
    scratch.push_back({region.scratch.get(), static_cast<size_t>(program.scratch_bytes)});
  Promises promises(scratch);
  found.members[0].call->enter_thread();
  Frame frame(program, arguments, targets);
  frame.run({});
  for (const size_t output : outputs) mark_written(found.members[output].data);
}

// Runs a region that begins with the next piece of work; see queue::RegionRunner.
queue::RegionOutcome run_region(const std::function<queue::Work*(size_t)>& at) {
  Collected found;
  bool idle = false, full = false;
  for (;;) {
    full = found.members.size() == kMostCalls;
    if (full) break;
    queue::Work* work = at(found.members.size());
    idle = work == nullptr;
    const QueuedCall* call = idle ? nullptr : work->as_call();
    if (call == nullptr || !found.add(*call)) break;
  }
  const size_t count = found.members.size();
  if (count < 2) return {0, count};
  const auto outputs = found.kept([&](size_t k) { return at(count + k); });
  if (outputs.empty()) return {0, count};
  const auto key = found.key(outputs);
  Region* region = nullptr;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    const auto known = g_numbers.find(key);
    if (known != g_numbers.end()) {
      region = &g_regions[static_cast<size_t>(known->second)];
    } else if (g_regions.size() < kMostRegions) {
      g_numbers[key] = static_cast<int64_t>(g_regions.size());
      region = &g_regions.emplace_back();
      for (const Member& member : found.members) region->kinds.push_back(member.call->settled());
    }
    if (region == nullptr) return {0, count};
    if (region->state == Region::State::kSeen &&
        ++region->seen >= (idle ? kTimesIfIdle : kTimesBeforeCompiling)) {
      region->state = Region::State::kWanted;
      g_wanted.push_back(wanted_of(g_numbers[key], found, outputs));
      g_changed.notify_all();
    }
    if (region->state != Region::State::kReady) return {0, count};
    ++g_stats.regions;
    g_stats.calls += static_cast<int64_t>(count);
    g_stats.unwritten += static_cast<int64_t>(count - outputs.size());
    ++(full ? g_stats.ended_full : idle ? g_stats.ended_idle : g_stats.ended_boundary);
  }
  static const std::string activity_name = "region";
  ActivityScope activity(activity_name);
  activity.on(found.members[0].call->core());
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
bool fits(const Program& program, const Wanted& wanted) {
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

std::map<int64_t, Wanted> g_under_way;

}  // namespace

void install_regions() { queue::set_region_runner(&run_region); }

RegionStats region_stats() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_stats;
}
void reset_region_stats() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_stats = {};
}

namespace {

py::object object_of(const Atom& atom) {
  if (const auto* i = std::get_if<int64_t>(&atom)) return py::int_(*i);
  if (const auto* d = std::get_if<double>(&atom)) return py::float_(*d);
  if (const auto* t = std::get_if<bool>(&atom)) return py::bool_(*t);
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
  Wanted wanted;
  {
    const py::gil_scoped_release released;
    std::unique_lock<std::mutex> lock(g_mutex);
    g_changed.wait(lock, [] { return g_stopped || !g_wanted.empty(); });
    if (g_stopped) wanted.number = -1;
    if (!g_stopped) {
      wanted = g_wanted.front();
      g_wanted.pop_front();
      g_under_way[wanted.number] = wanted;
    }
  }
  if (wanted.number < 0) return py::none();
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
  return py::make_tuple(wanted.number, static_cast<int>(wanted.core), inputs, calls,
                        tuple_of(wanted.outputs));
}

void finish_region(int64_t number, py::object program) {
  std::shared_ptr<const Program> made;
  if (!program.is_none()) made = program_of(program);
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto under_way = g_under_way.find(number);
  TORCH_CHECK_VALUE(under_way != g_under_way.end(), "no region ", number, " is being compiled");
  Region& region = g_regions[static_cast<size_t>(number)];
  if (made != nullptr && fits(*made, under_way->second)) {
    program.inc_ref();  // machine code belongs to the object; regions live to the end
    region.scratch = std::make_unique<char[]>(static_cast<size_t>(made->scratch_bytes));
    region.program = std::move(made);
    region.state = Region::State::kReady;
    ++g_stats.compiled;
  } else {
    region.state = Region::State::kGivenUp;
    ++g_stats.given_up;
  }
  g_under_way.erase(under_way);
}

void stop_regions() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_stopped = true;
  g_changed.notify_all();
}

}  // namespace torch_neuronx::program
