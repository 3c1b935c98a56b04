#include "program/collected.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "memory/allocator.h"

namespace torch_neuronx::program {

using queue::QueuedCall;
using queue::Result;

namespace {

// Smaller results stay in the caches between two calls, and a program would gain nothing.
constexpr int64_t kLeastBytes = 64 << 10;

// Operators whose compiled form gives the same bits in float32, bfloat16 and float16. That is
// tested (tests/device/test_eager_regions.py); those with `alpha` only where that is 1.
struct SameBits {
  std::string_view name;
  // The argument with this number has to have this value.
  int number = -1;
  double value = 0.0;
  bool operator<(std::string_view other) const { return name < other; }
};
constexpr SameBits kSameBits[] = {
    {"aten::abs"},
    {"aten::add.Tensor"},
    {"aten::cat"},
    {"aten::ceil"},
    {"aten::clamp"},
    {"aten::clamp_max"},
    {"aten::clamp_min"},
    {"aten::copy_"},
    {"aten::copysign.Tensor"},
    {"aten::div.Tensor"},
    {"aten::eq.Scalar"},
    {"aten::eq.Tensor"},
    {"aten::exp"},
    {"aten::floor"},
    {"aten::ge.Scalar"},
    {"aten::ge.Tensor"},
    {"aten::gelu"},
    {"aten::gelu_backward"},
    {"aten::gt.Scalar"},
    {"aten::gt.Tensor"},
    {"aten::hardsigmoid"},
    {"aten::hardswish"},
    {"aten::hardtanh"},
    {"aten::le.Scalar"},
    {"aten::le.Tensor"},
    {"aten::leaky_relu"},
    {"aten::logical_not"},
    {"aten::lt.Scalar"},
    {"aten::lt.Tensor"},
    {"aten::masked_fill.Scalar"},
    {"aten::mul.Tensor"},
    {"aten::ne.Scalar"},
    {"aten::ne.Tensor"},
    {"aten::neg"},
    {"aten::pow.Tensor_Scalar", 1, 2.0},
    {"aten::reciprocal"},
    {"aten::relu"},
    {"aten::round"},
    {"aten::rsub.Scalar"},
    {"aten::sigmoid"},
    {"aten::sigmoid_backward"},
    {"aten::sign"},
    {"aten::silu"},
    {"aten::silu_backward"},
    {"aten::sub.Tensor"},
    {"aten::tanh"},
    {"aten::tanh_backward"},
    {"aten::threshold_backward"},
    {"aten::trunc"},
    {"aten::where.self"},
};

bool has_value(const c10::IValue& given, double value) {
  if (given.isInt()) return static_cast<double>(given.toInt()) == value;
  return given.isDouble() && given.toDouble() == value;
}

bool has_same_bits(const QueuedCall& call) {
  thread_local std::unordered_map<const queue::Signature*, const SameBits*> known;
  const auto [found, is_new] = known.try_emplace(&call.signature(), nullptr);
  if (is_new) {
    const std::string name = c10::toString(call.op().operator_name());
    const SameBits* row = std::lower_bound(std::begin(kSameBits), std::end(kSameBits), name);
    if (row != std::end(kSameBits) && row->name == name) found->second = row;
  }
  const SameBits* row = found->second;
  return row != nullptr &&
         (row->number < 0 ||
          has_value(call.arguments()[static_cast<size_t>(row->number)], row->value));
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

struct Range {
  const char* begin;
  const char* end;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};
Range range_of(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  return {begin, begin + bytes};
}

}  // namespace

std::optional<Atom> Collected::constant(const c10::IValue& value) {
  if (value.isNone()) return Atom{};
  if (value.isBool()) return Atom{value.toBool()};
  if (value.isInt()) return Atom{value.toInt()};
  if (value.isDouble()) return Atom{value.toDouble()};
  if (value.isString()) return Atom{value.toStringRef()};
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
    if (call.signature().arguments[i].alpha && !has_value(arguments[i], 1.0)) return fails();
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

std::vector<size_t> Collected::kept(queue::LookAt later, bool skips_unread) const {
  std::vector<size_t> outputs;
  for (size_t m = 0; m < members.size(); ++m) {
    const Member& member = members[m];
    const Range range = range_of(member.data, member.bytes);
    // Memory that a later call of the region got was free by then, and its readers are in between.
    const bool again = std::any_of(
        members.begin() + static_cast<std::ptrdiff_t>(m) + 1, members.end(),
        [&](const Member& next) { return range.overlaps(range_of(next.data, next.bytes)); });
    if (again) continue;
    bool dead = skips_unread && !arena(member.call->core()).is_in_use(member.data, member.serial);
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
        if (const auto* text = std::get_if<std::string>(&atom)) {
          key.push_back(text->size());
          key.insert(key.end(), text->begin(), text->end());
        }
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

}  // namespace torch_neuronx::program
