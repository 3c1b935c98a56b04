#include "program/collected.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>

#include "device/generator.h"
#include "dispatch/dropout.h"
#include "dispatch/row_sums.h"
#include "memory/allocator.h"

namespace torch_neuronx::program {

using queue::QueuedCall;
using queue::Result;

namespace {

// All of a tensor by another one, of any type. Its name is that of no other operator without "_".
constexpr std::string_view kCopy = "aten::copy_";
// Its mask is drawn by the eager kernel; the rest is pointwise.
constexpr std::string_view kDropout = "aten::native_dropout";

bool is_contiguous(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != stride) return false;
    stride *= sizes[d];
  }
  return true;
}

// Whether the compiler adds up each row as a whole, with lanes along it: few long rows are added up
// in parts (neuronxcc/lowering/preparation/rewrites.py), and those of short ones may lie across.
bool are_added_whole(const std::optional<RowSums>& rows) {
  return rows && rows->cols >= 16 && (rows->rows >= 128 || rows->rows * rows->cols < 1 << 17);
}

// Whether the eager kernel adds up the rows of a contiguous tensor (dispatch/row_sums.h).
bool sums_rows(const QueuedCall& call) {
  const auto& arguments = call.arguments();
  const auto& operands = call.settled()->operands;
  if (operands.size() != 1 || arguments.size() != 4 || !arguments[1].isIntList() ||
      !arguments[3].isNone())
    return false;
  const queue::Operand& x = operands[0];
  return is_contiguous(x.sizes, x.strides) &&
         are_added_whole(row_sums(x.dtype, x.sizes, arguments[1].toIntVector()));
}

// Whether the eager kernel normalises the rows of a contiguous tensor, weighted by tensors of its
// type (kernels/norm.h).
bool norms_rows(const QueuedCall& call) {
  const auto& settled = *call.settled();
  const auto& arguments = call.arguments();
  if (settled.operands.empty() || settled.places[0].argument != 0 || !arguments[1].isIntList() ||
      !arguments[4].isDouble())
    return false;
  const auto normalized = arguments[1].toIntVector();
  const queue::Operand& x = settled.operands[settled.places[0].tensor];
  c10::SmallVector<int64_t, 5> dims;
  for (size_t i = normalized.size(); i > 0; --i) dims.push_back(-static_cast<int64_t>(i));
  if (!are_added_whole(row_sums(x.dtype, x.sizes, dims)) || !is_contiguous(x.sizes, x.strides))
    return false;
  if (at::IntArrayRef(x.sizes).slice(x.sizes.size() - normalized.size()) !=
      at::IntArrayRef(normalized))
    return false;
  return std::all_of(settled.places.begin() + 1, settled.places.end(), [&](const queue::Place& p) {
    const queue::Operand& weight = settled.operands[p.tensor];
    return weight.sizes == c10::DimVector(normalized.begin(), normalized.end()) &&
           is_contiguous(weight.sizes, weight.strides);
  });
}

// Operators whose compiled form gives the same bits in float32, bfloat16 and float16. That is
// tested (tests/device/test_eager_regions.py); those with `alpha` only where that is 1.
// The name without "_" stands for the operator that writes in place too.
struct SameBits {
  std::string_view name;
  // The argument with this number has to have this value.
  int number = -1;
  double value = 0.0;
  // Not in this type.
  std::optional<at::ScalarType> but = {};
  // What is computed row by row, where both add up a row in one order.
  bool (*rows)(const QueuedCall& call) = nullptr;
  size_t results = 1;

  bool takes(const QueuedCall& call) const;
};
constexpr SameBits kSameBits[] = {
    {"aten::abs"},
    {"aten::add.Tensor"},
    {"aten::addcdiv"},
    {"aten::cat"},
    {"aten::ceil"},
    {"aten::clamp"},
    {"aten::clamp_max"},
    {"aten::clamp_min"},
    {kCopy},
    {"aten::copysign.Tensor"},
    {"aten::div.Tensor"},
    {"aten::eq.Scalar"},
    {"aten::eq.Tensor"},
    {"aten::exp"},
    {"aten::floor"},
    {"aten::frac"},
    {"aten::ge.Scalar"},
    {"aten::ge.Tensor"},
    {"aten::gelu"},
    {"aten::gelu_backward"},
    {"aten::gt.Scalar"},
    {"aten::gt.Tensor"},
    {"aten::hardsigmoid"},
    {"aten::hardsigmoid_backward"},
    {"aten::hardswish"},
    {"aten::hardtanh"},
    {"aten::isnan"},
    {"aten::le.Scalar"},
    {"aten::le.Tensor"},
    {"aten::leaky_relu"},
    {"aten::leaky_relu_backward"},
    {"aten::logical_and"},
    {"aten::logical_not"},
    {"aten::logical_or"},
    {"aten::logical_xor"},
    {"aten::lt.Scalar"},
    {"aten::lt.Tensor"},
    {"aten::masked_fill.Scalar"},
    {.name = "aten::mean.dim", .rows = &sums_rows},
    {"aten::mse_loss", 2, 0.0},
    {"aten::mse_loss_backward", 3, 0.0},
    {"aten::mul.Tensor"},
    {"aten::nan_to_num"},
    {kDropout},
    {"aten::native_dropout_backward"},
    {.name = "aten::native_layer_norm", .rows = &norms_rows, .results = 3},
    {"aten::ne.Scalar"},
    {"aten::ne.Tensor"},
    {"aten::neg"},
    {"aten::pow.Tensor_Scalar", 1, -1.0},
    {"aten::pow.Tensor_Scalar", 1, 1.0},
    {"aten::pow.Tensor_Scalar", 1, 2.0},
    // The eager kernel rounds x * x to bfloat16, though not to float16.
    {"aten::pow.Tensor_Scalar", 1, 3.0, at::kBFloat16},
    {"aten::reciprocal"},
    {"aten::relu"},
    {"aten::round"},
    {"aten::rsqrt"},
    {"aten::rsub.Scalar"},
    {"aten::sgn"},
    {"aten::sigmoid"},
    {"aten::sigmoid_backward"},
    {"aten::sign"},
    {"aten::signbit"},
    {"aten::silu"},
    {"aten::silu_backward"},
    {"aten::sqrt"},
    {"aten::sub.Tensor"},
    {.name = "aten::sum.dim_IntList", .rows = &sums_rows},
    {"aten::tanh"},
    {"aten::tanh_backward"},
    {"aten::threshold"},
    {"aten::threshold_backward"},
    {"aten::trunc"},
    {"aten::where.self"},
};

bool has_value(const c10::IValue& given, double value) {
  if (given.isInt()) return static_cast<double>(given.toInt()) == value;
  return given.isDouble() && given.toDouble() == value;
}

// Takes down where a result lies that is all of an allocation of its call.
bool is_new(const QueuedCall& call, size_t number, Member* member) {
  const Result& result = call.settled()->returns[number][0];
  if (result.kind != Result::Kind::kNew || result.allocation < 0 || result.offset != 0)
    return false;
  const Allocation& memory = call.memory()[static_cast<size_t>(result.allocation)];
  member->dtype = result.geometry.dtype;
  member->sizes = result.geometry.sizes;
  member->strides = result.geometry.strides;
  member->data = memory.pointer;
  member->bytes = result.bytes;
  member->serial = memory.serial;
  return member->serial != 0;
}

// "aten::add.Tensor" of aten::add_.Tensor, which gives the same.
std::string functional_name(const c10::OperatorName& name) {
  std::string base = name.name;
  if (base.ends_with('_') && base != kCopy) base.pop_back();
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

bool SameBits::takes(const QueuedCall& call) const {
  if (rows != nullptr) return rows(call);
  if (number >= 0 && !has_value(call.arguments()[static_cast<size_t>(number)], value)) return false;
  const auto& operands = call.settled()->operands;
  return !but || std::none_of(operands.begin(), operands.end(),
                              [&](const queue::Operand& each) { return each.dtype == *but; });
}

// The row by which a call takes part, or null.
const SameBits* row_of(const QueuedCall& call) {
  struct Rows {
    const SameBits* begin = std::end(kSameBits);
    const SameBits* end = std::end(kSameBits);
  };
  thread_local std::unordered_map<const queue::Signature*, Rows> known;
  const auto [found, is_new] = known.try_emplace(&call.signature());
  Rows& rows = found->second;
  if (is_new) {
    const std::string name = functional_name(call.op().operator_name());
    rows.begin = std::lower_bound(
        std::begin(kSameBits), std::end(kSameBits), name,
        [](const SameBits& row, const std::string& wanted) { return row.name < wanted; });
    rows.end = rows.begin;
    while (rows.end != std::end(kSameBits) && rows.end->name == name) ++rows.end;
  }
  const auto* row =
      std::find_if(rows.begin, rows.end, [&](const SameBits& each) { return each.takes(call); });
  return row == rows.end ? nullptr : row;
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

// Whether a result is all of its memory: no gaps that keep what was there.
template <class Placed>
bool fills(const Placed& member, size_t bytes) {
  const auto elements = static_cast<size_t>(c10::multiply_integers(member.sizes));
  if (elements * c10::elementSize(member.dtype) != bytes) return false;
  c10::SmallVector<size_t, 5> dims;
  for (size_t d = 0; d < member.sizes.size(); ++d)
    if (member.sizes[d] != 1) dims.push_back(d);
  std::sort(dims.begin(), dims.end(),
            [&](size_t a, size_t b) { return member.strides[a] < member.strides[b]; });
  int64_t stride = 1;
  for (const size_t d : dims) {
    if (member.strides[d] != stride) return false;
    stride *= member.sizes[d];
  }
  return true;
}
void add_words(const Atom& atom, std::vector<uint64_t>* words) {
  words->push_back(atom.index());
  if (const auto* i = std::get_if<int64_t>(&atom)) words->push_back(static_cast<uint64_t>(*i));
  if (const auto* d = std::get_if<double>(&atom)) words->push_back(std::bit_cast<uint64_t>(*d));
  if (const auto* t = std::get_if<bool>(&atom)) words->push_back(*t);
  if (const auto* text = std::get_if<std::string>(&atom)) {
    words->push_back(text->size());
    words->insert(words->end(), text->begin(), text->end());
  }
  if (const auto* i = std::get_if<InputRef>(&atom)) words->push_back(i->number);
  if (const auto* v = std::get_if<ValueRef>(&atom)) words->push_back(v->member);
}

void set_words(Member* member) {
  // A kind of call is known by its address, and says the geometry of all operands; a region keeps
  // those that it was made of.
  auto& words = member->words;
  words.push_back(reinterpret_cast<uint64_t>(member->call->settled().get()));
  words.push_back(member->result);
  words.push_back(static_cast<uint64_t>(member->replaces + 1));
  for (const Given& given : member->arguments) {
    words.push_back(given.items.size());
    for (const Atom& atom : given.items) add_words(atom, &words);
  }
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
  return Atom{this->input(std::move(input), start, bytes, fresh)};
}

// The input of the region that this is, known before or a fresh one.
InputRef Collected::input(Input found, void* start, size_t bytes, std::vector<Input>* fresh) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i] == found) return {i};
  for (size_t i = 0; i < fresh->size(); ++i)
    if ((*fresh)[i] == found) return {inputs.size() + i};
  const std::pair<void*, size_t> storage{start, bytes};
  const auto known = std::find(storages.begin(), storages.end(), storage);
  found.storage = static_cast<int>(known - storages.begin());
  if (known == storages.end()) storages.push_back(storage);
  fresh->push_back(std::move(found));
  return {inputs.size() + fresh->size() - 1};
}

// Notes where the result lies among what the region reads: freed memory has a next owner.
void Collected::place(Member* member, const std::vector<Input>& fresh) const {
  const Range written = range_of(member->data, member->bytes);
  for (size_t i = 0; i < inputs.size() + fresh.size(); ++i) {
    const Input& input = i < inputs.size() ? inputs[i] : fresh[i - inputs.size()];
    const auto& [start, bytes] = storages[static_cast<size_t>(input.storage)];
    if (!written.overlaps(range_of(start, bytes))) continue;
    // The compiler knows of one input that it becomes a result, if it is all of the memory.
    const bool whole = start == member->data && bytes == member->bytes && input.data == start &&
                       input.dtype == member->dtype && input.sizes == member->sizes &&
                       input.strides == member->strides;
    member->staged = member->staged || !whole || member->replaces >= 0;
    member->replaces = static_cast<int>(i);
  }
  if (member->staged) member->replaces = -1;
}

bool Collected::add(const QueuedCall& call) {
  const auto& settled = *call.settled();
  const SameBits* row = row_of(call);
  if (row == nullptr) return false;
  const bool drops = row->name == kDropout;
  if (settled.returns.size() != row->results + drops || settled.draws != (drops ? 1 : 0) ||
      std::any_of(settled.returns.begin(), settled.returns.end(),
                  [](const auto& results) { return results.size() != 1; }))
    return false;
  if (!members.empty() && !call.enters_as(*members[0].call)) return false;
  const int target = call.signature().returns[0];
  const bool copies = row->name == kCopy;
  if (!copies && !has_one_type(settled.operands)) return false;
  Member member;
  member.call = &call;
  if (target >= 0) {  // all of a storage becomes the result
    const auto written =
        std::find_if(settled.places.begin(), settled.places.end(),
                     [&](const queue::Place& p) { return p.argument == target && p.item < 0; });
    if (written == settled.places.end()) return false;
    const queue::Operand& to = settled.operands[written->tensor];
    const auto& [start, bytes] = call.storages()[to.storage];
    if (call.offsets()[written->tensor] != 0) return false;
    for (size_t i = 0; i < settled.operands.size(); ++i)
      if (i != written->tensor && settled.operands[i].storage == to.storage) return false;
    if (copies && (!settled.memory.empty() || settled.operands.size() != 2)) return false;
    member.dtype = to.dtype;
    member.sizes = to.sizes;
    member.strides = to.strides;
    member.data = start;
    member.bytes = bytes;
    member.serial = call.storage_serial(to.storage);
  } else if (!is_new(call, 0, &member)) {
    return false;
  }
  if (!is_known_type(member.dtype) || member.serial == 0 || !fills(member, member.bytes))
    return false;
  if (copies && !is_contiguous(member.sizes, member.strides)) return false;

  member.inputs_before = inputs.size();
  member.storages_before = storages.size();
  std::vector<Input> fresh;
  member.drawn_before = drawn.size();
  if (!(drops ? add_dropout(call, &member, &fresh)
              : add_arguments(call, copies, &member, &fresh))) {
    storages.resize(member.storages_before);
    return false;
  }
  std::vector<Member> made;
  made.push_back(std::move(member));
  for (size_t r = 1; r < row->results; ++r) {
    Member& other = made.emplace_back();
    other.call = &call;
    other.result = r;
    if (!is_new(call, r, &other) || !is_known_type(other.dtype) || !fills(other, other.bytes)) {
      storages.resize(made[0].storages_before);
      return false;
    }
  }
  for (Member& each : made) {
    place(&each, fresh);
    set_words(&each);
    bytes += each.bytes;
  }
  inputs.insert(inputs.end(), fresh.begin(), fresh.end());
  std::move(made.begin(), made.end(), std::back_inserter(members));
  ++calls;
  return true;
}

bool Collected::add_arguments(const QueuedCall& call, bool copies, Member* member,
                              std::vector<Input>* fresh) {
  const auto& arguments = call.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    Given& given = member->arguments.emplace_back();
    given.is_list = call.signature().arguments[i].role == queue::Argument::Role::kTensorList;
    if (copies && i == 0) {
      given.items.push_back(Atom{});
      continue;
    }
    bool found = false;
    for (const queue::Place& place : call.settled()->places) {
      if (place.argument != i) continue;
      found = true;
      const auto atom = tensor(call, place.tensor, fresh);
      if (!atom) return false;
      given.items.push_back(*atom);
    }
    if (found) continue;
    if (arguments[i].isIntList()) {
      given.is_list = true;
      for (const int64_t item : arguments[i].toIntVector()) given.items.push_back(Atom{item});
      continue;
    }
    const auto atom = constant(arguments[i]);
    if (!atom || given.is_list) return false;
    if (call.signature().arguments[i].alpha && !has_value(arguments[i], 1.0)) return false;
    given.items.push_back(*atom);
  }
  return true;
}

bool Collected::add_dropout(const QueuedCall& call, Member* member, std::vector<Input>* fresh) {
  const auto& settled = *call.settled();
  const auto& arguments = call.arguments();
  const Result& mask = settled.returns[1].at(0);
  const bool trains = arguments[2].isNone() || arguments[2].toBool();
  if (!trains || !arguments[1].isDouble() || settled.places.size() != 1 ||
      settled.places[0].argument != 0 || mask.kind != Result::Kind::kNew || mask.allocation < 0 ||
      mask.offset != 0 || mask.geometry.dtype != at::kBool || !fills(mask.geometry, mask.bytes))
    return false;
  // The mask is drawn before the calls in front of this one have run.
  void* const data = call.memory()[static_cast<size_t>(mask.allocation)].pointer;
  const Range drawn_to = range_of(data, mask.bytes);
  for (const auto& [start, bytes] : storages)
    if (drawn_to.overlaps(range_of(start, bytes))) return false;
  for (const Member& each : members)
    if (drawn_to.overlaps(range_of(each.data, each.bytes))) return false;
  const auto x = tensor(call, 0, fresh);
  if (!x) return false;
  const double share = arguments[1].toDouble();
  const Input kept{at::kBool, mask.geometry.sizes, mask.geometry.strides, data, -1};
  const InputRef keep = input(kept, data, mask.bytes, fresh);
  for (const Atom& atom : {*x, Atom{keep}, Atom{dropout_scale(share)}})
    member->arguments.push_back({{atom}, false});
  drawn.push_back({&call, at::kBool, mask.geometry.sizes, mask.geometry.strides, data, share});
  return true;
}

void Drawn::draw() const {
  PhiloxState state = call->draws();
  const GivenDraws given(&state);
  const at::DisableRecordFunctionGuard quiet;  // a profile shows the region
  draw_kept(at::from_blob(data, sizes, strides, at::TensorOptions(dtype)), share, call->core());
  mark_written(data);
}

void Collected::keep_first(size_t count) {
  if (count == members.size()) return;
  for (size_t m = count; m < members.size(); ++m) {
    bytes -= members[m].bytes;
    calls -= members[m].result == 0;
  }
  inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(members[count].inputs_before),
               inputs.end());
  storages.resize(members[count].storages_before);
  drawn.erase(drawn.begin() + static_cast<std::ptrdiff_t>(members[count].drawn_before),
              drawn.end());
  members.erase(members.begin() + static_cast<std::ptrdiff_t>(count), members.end());
}

std::vector<Fate> Collected::fates(queue::Ahead& ahead, bool skips_unread) const {
  std::vector<Fate> found(members.size(), Fate::kWanted);
  uint64_t unread = 0;  // a bit for each, of addresses of what may be unread
  const auto bit = [](const void* data) {
    return uint64_t{1} << (reinterpret_cast<uintptr_t>(data) * 0x9e3779b97f4a7c15ULL >> 58);
  };
  for (size_t m = 0; m < members.size(); ++m) {
    const Member& member = members[m];
    const Range range = range_of(member.data, member.bytes);
    // Memory that a later call of the region got was free by then, and its readers are in between.
    const bool passed = std::any_of(
        members.begin() + static_cast<std::ptrdiff_t>(m) + 1, members.end(),
        [&](const Member& next) { return range.overlaps(range_of(next.data, next.bytes)); });
    if (passed) {
      found[m] = Fate::kPassed;
    } else if (skips_unread && !arena(member.call->core()).is_in_use(member.data, member.serial)) {
      found[m] = Fate::kUnread;
      unread |= bit(member.data);
    }
  }
  // What was freed may have readers that were enqueued before.
  for (size_t k = calls; unread != 0; ++k) {
    queue::Work* work = ahead.at(k);
    if (work == nullptr) break;
    const QueuedCall* call = work->as_call();
    if (call == nullptr) {  // it may read anything
      std::replace(found.begin(), found.end(), Fate::kUnread, Fate::kWanted);
      break;
    }
    for (size_t s = 0; s < call->storages().size(); ++s) {
      const void* start = call->storages()[s].first;
      if ((unread & bit(start)) == 0) continue;
      for (size_t m = 0; m < members.size(); ++m) {
        if (start == members[m].data && call->storage_serial(s) == members[m].serial &&
            found[m] == Fate::kUnread)
          found[m] = Fate::kWanted;
      }
    }
  }
  return found;
}

}  // namespace torch_neuronx::program
