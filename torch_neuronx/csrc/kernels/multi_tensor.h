// Runs a small program of elementwise steps over many tensors, chunk by chunk, so that a chunk goes
// through all steps while it is in cache.
//
// torch's optimizers are sequences of _foreach_ operators, each a pass over every parameter. Run
// one after the other they are bound by memory; run as one program they touch memory once.
//
// Example, exp_avg.lerp_(grad, 0.1); tmp = sqrt(exp_avg) with slots 0 = exp_avg, 1 = grad, 2 = tmp:
//   Step steps[] = {{.op = Op::LerpScalar, .dst = 0, .a = 0, .b = 1, .scalar = 0.1},
//                   {.op = Op::Sqrt, .dst = 2, .a = 0}};
//   run_program(steps, 3, at::kFloat, groups);
// A group whose slots[2] is nullptr makes tmp a temporary: it lives in scratch memory only.
//
// Every step computes what the ATen CPU operator of the same name computes and rounds its result to
// the dtype, so the program gives what the separate operators give: bit for bit in float32 and
// float64 except for Sqrt (see Op), within 1 ulp in 16-bit types.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/isa.h"

namespace torch_neuronx::kernels {

/// s is the step's scalar, float32 for 16-bit types; AddScalar, RevSubScalar and Add round it to
/// the dtype first, as torch does. torch's `s / a` is Reciprocal and MulScalar. Sqrt is rounded
/// correctly, where ATen's (from MKL) can be 1 ulp off.
enum class Op : uint8_t {
  // dst = f(a)
  Copy,
  Neg,
  Abs,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Sign,
  // dst = f(s)
  Fill,
  // dst = f(a, s)
  AddScalar,     // a + s
  MulScalar,     // a * s
  DivScalar,     // a / s
  RevSubScalar,  // s - a
  MaxScalar,     // clamp_min: NaN stays NaN
  MinScalar,     // clamp_max
  PowScalar,     // a ** s where program_supports_pow
  // dst = f(a, b)
  Mul,
  Div,
  Maximum,
  Minimum,
  // dst = f(a, b, s)
  Add,         // a + s * b
  LerpScalar,  // a + s * (b - a), the form from b for |s| >= 0.5
  // dst = f(a, b, c)
  LerpTensor,  // weights in c
  // dst = f(a, b, c, s)
  Addcmul,  // a + s * b * c
  Addcdiv,  // a + s * b / c
  kCount
};

/// Operands are slot numbers. A dst may be one of the operands. Leave unused operands at 0.
struct Step {
  Op op = Op::Copy;
  uint8_t dst = 0, a = 0, b = 0, c = 0;
  /// Take the scalar from TensorGroup::scalars at this step's position instead of from `scalar`.
  bool per_tensor = false;
  double scalar = 0.0;
};

/// One tensor position of the lists: its operands and its scalars.
struct TensorGroup {
  /// Address per slot, contiguous arrays of `numel` elements; nullptr for a temporary slot. Slots
  /// must not overlap partially; equal addresses are fine.
  std::vector<void*> slots;
  int64_t numel = 0;
  /// Empty, or one per step.
  std::vector<double> scalars;
};

constexpr int kMaxSlots = 32;
constexpr int kMaxSteps = 64;

/// Whether run_program computes `a ** exponent` as torch does: 0, 0.5, 1, 2, -1, and in Float and
/// Double 3, -0.5 and -2 (which torch rounds after each multiplication in 16-bit types).
bool program_supports_pow(double exponent, c10::ScalarType dtype);

/// Runs all `steps` for every group. dtype is Float, Double, BFloat16 or Half, the same for all
/// slots. Throws c10::Error, before anything was computed, for another dtype, more than kMaxSteps
/// steps or kMaxSlots slots, an operand outside of [0, slot_count), a group whose slot or scalar
/// count is wrong, a temporary that is read before it is written, or an unsupported exponent.
void run_program(std::span<const Step> steps, int slot_count, c10::ScalarType dtype,
                 std::span<const TensorGroup> groups);

/// Runs of steps that occur together and are done in one pass, in registers.
enum class Run : uint8_t {
  DecayAddcmul,   // d = d * s0; d = d + s1 * b * c
  AdamParameter,  // t = sqrt(a); t = t / s0; t = t + s1; d = d + s2 * b / t, t a temporary
  kCount
};

/// The scalars of one whole step of Adam or AdamW, see AdamFn.
enum AdamScalar : uint8_t { kDecay, kFirst, kSecond, kSquare, kCorrection, kEpsilon, kStep };
constexpr int kAdamScalars = 7;

/// All of Adam in one pass over a parameter p, its gradient g and its moments m and v:
///   p *= s[kDecay]; m = lerp(m, g, s[kFirst]); v = v * s[kSecond] + s[kSquare] * g * g;
///   p += s[kStep] * m / (sqrt(v) / s[kCorrection] + s[kEpsilon])
using AdamFn = void (*)(void* p, void* m, void* v, const void* g, const double* scalars, int64_t n);

/// One table per instruction set; the first index is 0 Float, 1 BFloat16, 2 Half, 3 Double.
struct MultiTensorTable {
  using StepFn = void (*)(void* dst, const void* a, const void* b, const void* c,
                          const double* scalars, int64_t n);
  StepFn step[4][int(Op::kCount)];
  StepFn run[4][int(Run::kCount)];
  AdamFn adam[4];
};

TN_DECLARE_TABLES(MultiTensorTable, multi_tensor_table)

}  // namespace torch_neuronx::kernels
