// Collectives of a program: what they are given, and that nobody else uses that memory meanwhile.
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "program/build.h"
#include "program/builder.h"

namespace torch_neuronx::program {
namespace {

using Kind = CollectiveKind;
using RedOp = c10d::ReduceOp::RedOpType;
constexpr int64_t kMostRanks = 1 << 20;

struct KindName {
  const char* name;
  Kind kind;
};
constexpr KindName kKinds[] = {
    {"all_reduce", Kind::kAllReduce},           {"all_gather", Kind::kAllGather},
    {"reduce_scatter", Kind::kReduceScatter},   {"all_to_all", Kind::kAllToAll},
    {"collective_broadcast", Kind::kBroadcast}, {"collective_permute", Kind::kPermute}};

struct ReductionName {
  const char* name;
  RedOp op;
};
constexpr ReductionName kReductions[] = {
    {"add", RedOp::SUM},  {"mul", RedOp::PRODUCT}, {"min", RedOp::MIN},  {"max", RedOp::MAX},
    {"and", RedOp::BAND}, {"or", RedOp::BOR},      {"xor", RedOp::BXOR}, {"avg", RedOp::AVG}};

Kind kind_of(const std::string& name) {
  for (const KindName& known : kKinds) {
    if (name == known.name) return known.kind;
  }
  TORCH_CHECK_VALUE(false, "'", name, "' is no collective");
}

uint8_t reduction_of(const std::string& name) {
  for (const ReductionName& known : kReductions) {
    if (name == known.name) return static_cast<uint8_t>(known.op);
  }
  TORCH_CHECK_VALUE(false, "'", name, "' is no reduction of a collective");
}

bool reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

std::vector<int64_t> rows(py::handle value, const char* what) {
  std::vector<int64_t> result;
  for (const py::handle item : items(value, what)) {
    result.push_back(integer(item, what));
    TORCH_CHECK_VALUE(result.back() >= 0, what, " are negative");
  }
  return result;
}

// In elements, without overflow: a geometry's extents are those of memory.
void check_sizes(const CollectiveStep& step, const Geometry& in, const Geometry& out) {
  const auto fits = [&]() -> bool {
    switch (step.kind) {
      case Kind::kAllGather:
        return out.numel == in.numel * step.size;
      case Kind::kReduceScatter:
        return in.numel == out.numel * step.size;
      case Kind::kAllToAll:
        if (step.send.empty()) {
          return in.numel == out.numel && (in.numel == 0 || in.sizes[0] % step.size == 0);
        }
        return in.sizes[0] >= 0 && out.sizes.size() == in.sizes.size();
      default:
        return in.sizes == out.sizes;
    }
  };
  TORCH_CHECK_VALUE(in.dtype == out.dtype && in.contiguous && out.contiguous && fits(), step.name,
                    " of ", describe(in.dtype, in.sizes), " to ", describe(out.dtype, out.sizes));
}

void check_rows(const CollectiveStep& step) {
  if (step.send.empty() && step.receive.empty()) return;
  TORCH_CHECK_VALUE(step.kind == Kind::kAllToAll && step.inputs.size() == 1 &&
                        static_cast<int64_t>(step.send.size()) == step.size &&
                        static_cast<int64_t>(step.receive.size()) == step.size,
                    step.name, " with rows for ", step.send.size(), " and from ",
                    step.receive.size(), " of ", step.size, " ranks");
  const Geometry &in = step.inputs[0].geometry, &out = step.outs[0].geometry;
  const auto total = [](const std::vector<int64_t>& values) {
    int64_t sum = 0;
    for (const int64_t value : values) {
      TORCH_CHECK_VALUE(!__builtin_add_overflow(sum, value, &sum), "too many rows");
    }
    return sum;
  };
  const bool alike =
      std::equal(in.sizes.begin() + 1, in.sizes.end(), out.sizes.begin() + 1, out.sizes.end());
  TORCH_CHECK_VALUE(alike && total(step.send) == in.sizes[0] && total(step.receive) == out.sizes[0],
                    step.name, " of ", describe(in.dtype, in.sizes), " to ",
                    describe(out.dtype, out.sizes), " with rows ", step.send, " and ",
                    step.receive);
}

}  // namespace

std::unique_ptr<Step> Builder::make_collective(const py::dict& spec, std::string name,
                                               std::string loc) {
  auto step = std::make_unique<CollectiveStep>(std::move(name), std::move(loc));
  TORCH_CHECK_VALUE(loops_ == 0, "a collective in a loop that the device decides");
  step->kind = kind_of(text(field(spec, "collective"), "a collective"));
  step->number = program_->collectives++;
  step->group = text(field(spec, "group"), "the name of a process group");
  step->size = integer(field(spec, "size"), "the size of a process group");
  TORCH_CHECK_VALUE(step->size >= (step->kind == Kind::kPermute ? 0 : 1) &&
                        step->size <= kMostRanks && !step->group.empty(),
                    step->name, " in the group '", step->group, "' of ", step->size, " ranks");
  const std::string reduction = text(field(spec, "reduction"), "a reduction");
  if (reduces(step->kind)) {
    step->reduction = reduction_of(reduction);
  } else {
    TORCH_CHECK_VALUE(reduction.empty(), step->name, " with the reduction '", reduction, "'");
  }
  step->root = integer(field(spec, "root"), "the root of a broadcast");
  TORCH_CHECK_VALUE(step->root >= 0 && (step->root == 0 || step->root < step->size), step->name,
                    " from rank ", step->root, " of ", step->size);
  step->send = rows(field(spec, "send"), "rows to send");
  step->receive = rows(field(spec, "receive"), "rows to receive");
  for (const py::handle item : items(field(spec, "pairs"), "pairs")) {
    const std::vector<int64_t> pair = rows(item, "a pair of ranks");
    TORCH_CHECK_VALUE(pair.size() == 2 && pair[0] < kMostRanks && pair[1] < kMostRanks,
                      "a pair of ", pair.size(), " ranks");
    step->pairs.push_back({pair[0], pair[1]});
  }
  const auto inputs = items(field(spec, "inputs"), "inputs");
  const auto outs = items(field(spec, "outs"), "outs");
  const bool several = reduces(step->kind) || step->kind == Kind::kAllGather;
  TORCH_CHECK_VALUE(
      inputs.size() == outs.size() && !inputs.empty() && (several || inputs.size() == 1),
      step->name, " of ", inputs.size(), " tensors to ", outs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    step->inputs.push_back(view(inputs[i], "what a collective sends", false));
    step->outs.push_back(view(outs[i], "what a collective gives", true));
    const Geometry &in = step->inputs[i].geometry, &out = step->outs[i].geometry;
    TORCH_CHECK_VALUE(step->kind != Kind::kAllToAll || !in.sizes.empty(), step->name,
                      " of a scalar");
    check_sizes(*step, in, out);
    TORCH_CHECK_VALUE(in.dtype == step->inputs[0].geometry.dtype, step->name,
                      " of tensors of several types");
  }
  check_rows(*step);
  in_flight_.push_back(step.get());
  return step;
}

std::unique_ptr<Step> Builder::make_wait(const py::dict& spec, std::string name, std::string loc) {
  auto step = std::make_unique<WaitStep>(std::move(name), std::move(loc));
  const int64_t number = integer(field(spec, "start"), "the start of a collective");
  const auto count = static_cast<int64_t>(program_->steps.size());
  TORCH_CHECK_VALUE(number >= 0 && number < count && loops_ == 0, "a wait for step ", number);
  step->start = dynamic_cast<const CollectiveStep*>(program_->steps[number].get());
  const auto found = std::find(in_flight_.begin(), in_flight_.end(), step->start);
  TORCH_CHECK_VALUE(step->start != nullptr && found != in_flight_.end(), "a wait for step ", number,
                    ", which is no collective that is running");
  in_flight_.erase(found);
  // The memory is in use until now.
  for (const View& view : step->start->inputs) touch(view, false);
  for (const View& view : step->start->outs) touch(view, true);
  return step;
}

void Builder::check_in_flight(int32_t id, int64_t low, int64_t high, bool written) const {
  if (low == high) return;
  const auto shift = [&](int32_t buffer) {
    const Buffer& facts = program_->buffers[buffer];
    return facts.kind == BufferKind::kTemp ? facts.offset : 0;
  };
  const auto overlaps = [&](const View& view) {
    const Buffer &a = program_->buffers[id], &b = program_->buffers[view.buffer];
    const bool both = a.kind == BufferKind::kTemp && b.kind == BufferKind::kTemp;
    if (id != view.buffer && !both) return false;
    const int64_t begin = shift(view.buffer) + view.offset_bytes() + view.geometry.low;
    const int64_t end = begin + view.geometry.high - view.geometry.low;
    return begin < shift(id) + high && shift(id) + low < end;
  };
  for (const CollectiveStep* step : in_flight_) {
    const bool wrong = std::any_of(step->outs.begin(), step->outs.end(), overlaps) ||
                       (written && std::any_of(step->inputs.begin(), step->inputs.end(), overlaps));
    TORCH_CHECK_VALUE(!wrong, "bytes ", low, " to ", high, " of buffer ", id,
                      " are used while the collective ", step->name, " is at work on them");
  }
}

}  // namespace torch_neuronx::program
