#include "kernels/multi_tensor.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/parallel.h"

namespace torch_neuronx::kernels {
namespace {

// Bytes of one slot that go through all steps at a time. Measured on AdamW over 50 x 1M floats (Zen
// 4, one thread): 512 29.4, 1024 30.6, 2048 33.0 ms of CPU; prefetching by hand only cost.
constexpr int64_t kStripBytes = 512;
// Elements per task, handed to threads as they become free.
constexpr int64_t kTask = 65536;

struct DtypeInfo {
  int index;
  int64_t size;
};

DtypeInfo dtype_info(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return {0, 4};
    case c10::ScalarType::BFloat16:
      return {1, 2};
    case c10::ScalarType::Half:
      return {2, 2};
    case c10::ScalarType::Double:
      return {3, 8};
    default:
      TORCH_CHECK(false, "run_program: expected float32, float64, bfloat16 or float16, got ",
                  c10::toString(dtype));
  }
}

// How many of a, b, c a step reads.
int operand_count(Op op) {
  switch (op) {
    case Op::Fill:
      return 0;
    case Op::LerpTensor:
    case Op::Addcmul:
    case Op::Addcdiv:
      return 3;
    case Op::Mul:
    case Op::Div:
    case Op::Maximum:
    case Op::Minimum:
    case Op::Add:
    case Op::LerpScalar:
      return 2;
    default:
      return 1;
  }
}

void check_group(std::span<const Step> steps, int slot_count, c10::ScalarType dtype,
                 const TensorGroup& group) {
  TORCH_CHECK(static_cast<int>(group.slots.size()) == slot_count, "run_program: a group has ",
              group.slots.size(), " slots, the program has ", slot_count);
  TORCH_CHECK(group.scalars.empty() || group.scalars.size() == steps.size(),
              "run_program: a group has ", group.scalars.size(), " scalars for ", steps.size(),
              " steps");
  TORCH_CHECK(group.numel >= 0, "run_program: negative element count ", group.numel);
  std::array<bool, kMaxSlots> ready{};
  for (int slot = 0; slot < slot_count; ++slot) {
    ready[slot] = group.slots[slot] != nullptr || group.numel == 0;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const uint8_t operands[] = {step.a, step.b, step.c};
    for (int k = 0; k < operand_count(step.op); ++k) {
      TORCH_CHECK(ready[operands[k]], "run_program: step ", i, " reads temporary slot ",
                  int{operands[k]}, " before any step wrote it");
    }
    ready[step.dst] = true;
    TORCH_CHECK(!step.per_tensor || !group.scalars.empty(), "run_program: step ", i,
                " takes its scalar from the group, which has none");
    if (step.op == Op::PowScalar) {
      const double exponent = step.per_tensor ? group.scalars[i] : step.scalar;
      TORCH_CHECK(program_supports_pow(exponent, dtype), "run_program: exponent ", exponent,
                  " is not supported for ", c10::toString(dtype));
    }
  }
}

void check_program(std::span<const Step> steps, int slot_count, c10::ScalarType dtype,
                   std::span<const TensorGroup> groups) {
  TORCH_CHECK(steps.size() <= static_cast<size_t>(kMaxSteps), "run_program: ", steps.size(),
              " steps, at most ", kMaxSteps);
  TORCH_CHECK(slot_count >= 0 && slot_count <= kMaxSlots, "run_program: ", slot_count,
              " slots, at most ", kMaxSlots);
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    TORCH_CHECK(step.op < Op::kCount, "run_program: step ", i, " has an unknown operator");
    // Unused operands too: their addresses are computed all the same.
    const uint8_t operands[] = {step.dst, step.a, step.b, step.c};
    for (int k = 0; k < 4; ++k) {
      TORCH_CHECK(operands[k] < slot_count, "run_program: step ", i, " names slot ",
                  int{operands[k]}, " of ", slot_count);
    }
  }
  for (const TensorGroup& group : groups) {
    check_group(steps, slot_count, dtype, group);
  }
}

// What is left to do per strip: one function, its operands, its scalars.
struct Call {
  MultiTensorTable::StepFn function;
  uint8_t dst, a, b, c;
  double scalars[3];
};

bool reads(const Step& step, uint8_t slot) {
  const uint8_t operands[] = {step.a, step.b, step.c};
  const int count = operand_count(step.op);
  return std::find(operands, operands + count, slot) != operands + count;
}

// Whether no step reads `slot` before it is written again.
bool is_dead(std::span<const Step> later, uint8_t slot) {
  for (const Step& step : later) {
    if (reads(step, slot)) {
      return false;
    }
    if (step.dst == slot) {
      return true;
    }
  }
  return true;
}

bool on(const Step& step, Op op, uint8_t dst, uint8_t a) {
  return step.op == op && step.dst == dst && step.a == a;
}

// Two slots that hold the same array.
bool is_alias(const TensorGroup& group, uint8_t x, uint8_t y) {
  return x == y || (group.slots[x] != nullptr && group.slots[x] == group.slots[y]);
}

bool is_decay_addcmul(std::span<const Step> s, const TensorGroup& group) {
  if (s.size() < 2 || s[0].op != Op::MulScalar || s[0].a != s[0].dst) {
    return false;
  }
  const uint8_t d = s[0].dst;
  return on(s[1], Op::Addcmul, d, d) && !is_alias(group, s[1].b, d) && !is_alias(group, s[1].c, d);
}

bool is_adam_parameter(std::span<const Step> s, const TensorGroup& group) {
  if (s.size() < 4 || s[0].op != Op::Sqrt || group.slots[s[0].dst] != nullptr) {
    return false;
  }
  const uint8_t t = s[0].dst, d = s[3].dst;
  return s[0].a != t && d != t && on(s[1], Op::DivScalar, t, t) && on(s[2], Op::AddScalar, t, t) &&
         on(s[3], Op::Addcdiv, d, d) && s[3].b != t && s[3].c == t && is_dead(s.subspan(4), t);
}

// A whole step of Adam or AdamW, the slots of its arrays and its scalars.
struct Adam {
  uint8_t p, m, v, g;
  double scalars[kAdamScalars];
};

// `steps` as an Adam step if they are one, from first to last. Without weight decay the parameter
// is multiplied by 1, which changes nothing.
std::optional<Adam> as_adam(std::span<const Step> steps, const TensorGroup& group) {
  const bool decays = steps.size() == 8;
  if (!decays && steps.size() != 7) return std::nullopt;
  const auto scalar = [&](size_t i) {
    return steps[i].per_tensor ? group.scalars[i] : steps[i].scalar;
  };
  const size_t k = decays ? 1 : 0;  // where the first moment's step is
  const Step& last = steps[k + 6];
  const uint8_t p = last.dst, m = steps[k].dst, v = steps[k + 1].dst, g = steps[k].b;
  if (decays && !on(steps[0], Op::MulScalar, p, p)) return std::nullopt;
  if (!on(steps[k], Op::LerpScalar, m, m)) return std::nullopt;
  const auto square = steps.subspan(k + 1), update = steps.subspan(k + 3);
  if (!is_decay_addcmul(square, group) || square[1].b != g || square[1].c != g) return std::nullopt;
  if (!is_adam_parameter(update, group) || update[0].a != v || last.b != m) return std::nullopt;
  const uint8_t arrays[] = {p, m, v, g};
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) {
      if (is_alias(group, arrays[i], arrays[j])) return std::nullopt;
    }
  }
  return Adam{p,
              m,
              v,
              g,
              {decays ? scalar(0) : 1.0, scalar(k), scalar(k + 1), scalar(k + 2), scalar(k + 4),
               scalar(k + 5), scalar(k + 6)}};
}

// The calls of one group; runs are merged where the slots allow.
std::vector<Call> compile(std::span<const Step> steps, int dtype_index, const TensorGroup& group) {
  const MultiTensorTable& table = multi_tensor_table();
  const auto& runs = table.run[dtype_index];
  const auto scalar = [&](size_t i) {
    return steps[i].per_tensor ? group.scalars[i] : steps[i].scalar;
  };
  std::vector<Call> calls;
  for (size_t i = 0; i < steps.size();) {
    const auto rest = steps.subspan(i);
    const Step& first = rest[0];
    if (is_decay_addcmul(rest, group)) {
      calls.push_back({runs[int(Run::DecayAddcmul)],
                       first.dst,
                       first.dst,
                       rest[1].b,
                       rest[1].c,
                       {scalar(i), scalar(i + 1), 0}});
      i += 2;
    } else if (is_adam_parameter(rest, group)) {
      const Step& last = rest[3];
      calls.push_back({runs[int(Run::AdamParameter)],
                       last.dst,
                       first.a,
                       last.b,
                       last.b,
                       {scalar(i + 1), scalar(i + 2), scalar(i + 3)}});
      i += 4;
    } else {
      calls.push_back({table.step[dtype_index][int(first.op)],
                       first.dst,
                       first.a,
                       first.b,
                       first.c,
                       {scalar(i), 0, 0}});
      i += 1;
    }
  }
  return calls;
}

}  // namespace

bool program_supports_pow(double exponent, c10::ScalarType dtype) {
  const bool wide = dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double;
  constexpr double kAlways[] = {0.0, 0.5, 1.0, 2.0, -1.0};
  constexpr double kWide[] = {3.0, -0.5, -2.0};
  return std::find(std::begin(kAlways), std::end(kAlways), exponent) != std::end(kAlways) ||
         (wide && std::find(std::begin(kWide), std::end(kWide), exponent) != std::end(kWide));
}

void run_program(std::span<const Step> steps, int slot_count, c10::ScalarType dtype,
                 std::span<const TensorGroup> groups) {
  const DtypeInfo info = dtype_info(dtype);
  check_program(steps, slot_count, dtype, groups);
  if (steps.empty()) {
    return;
  }
  // first_task[g] is the number of tasks before group g.
  std::vector<int64_t> first_task(groups.size() + 1, 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    first_task[g + 1] = first_task[g] + (groups[g].numel + kTask - 1) / kTask;
  }
  const int64_t strip = kStripBytes / info.size;

  parallel_chunks(first_task.back(), 1, [&](int64_t task, int64_t) {
    alignas(64) char scratch[kMaxSlots * kStripBytes];
    const size_t g =
        std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1;
    const TensorGroup& group = groups[g];
    const int64_t begin = (task - first_task[g]) * kTask;
    const int64_t end = std::min(group.numel, begin + kTask);
    if (const auto adam = as_adam(steps, group)) {
      const auto array = [&](uint8_t slot) {
        return static_cast<char*>(group.slots[slot]) + begin * info.size;
      };
      multi_tensor_table().adam[info.index](array(adam->p), array(adam->m), array(adam->v),
                                            array(adam->g), adam->scalars, end - begin);
      return;
    }
    const std::vector<Call> calls = compile(steps, info.index, group);
    // Temporaries keep their place in `scratch`; the others move on by one strip at a time.
    char* at[kMaxSlots];
    int64_t stride[kMaxSlots];
    for (int slot = 0; slot < slot_count; ++slot) {
      const bool temporary = group.slots[slot] == nullptr;
      at[slot] = temporary ? scratch + slot * kStripBytes
                           : static_cast<char*>(group.slots[slot]) + begin * info.size;
      stride[slot] = temporary ? 0 : kStripBytes;
    }
    for (int64_t i = begin; i < end; i += strip) {
      const int64_t n = std::min(strip, end - i);
      for (const Call& call : calls) {
        call.function(at[call.dst], at[call.a], at[call.b], at[call.c], call.scalars, n);
      }
      for (int slot = 0; slot < slot_count; ++slot) {
        at[slot] += stride[slot];
      }
    }
  });
}

}  // namespace torch_neuronx::kernels
