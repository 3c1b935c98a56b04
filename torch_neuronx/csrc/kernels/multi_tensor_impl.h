// The steps behind multi_tensor.h for one instruction set; see isa.h for how it is compiled.
#pragma once

#include "kernels/multi_tensor.h"
#include "kernels/vec.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

template <class V>
TN_INLINE V nan_or(V a, V b, V otherwise) {
  return a != a ? a : (b != b ? b : otherwise);
}
template <class V>
TN_INLINE V power(V x, V exponent) {
  const auto s = exponent[0];
  const V one = 1 - V{} * 0;
  if (s == 2) return x * x;
  if (s == 0.5) return sqrt(x);
  if (s == 3) return x * x * x;
  if (s == -0.5) return one / sqrt(x);
  if (s == -1) return one / x;
  if (s == -2) return one / (x * x);
  return s == 1 ? x : one;
}
template <class V>
TN_INLINE V lerp(V a, V b, V weight) {
  const auto low = abs(weight) < 0.5;
  const V coefficient = low ? weight : weight - 1;
  const V base = low ? a : b;
  return fma(coefficient, b - a, base);
}

// Which of a, b, c an operator reads.
enum Reads { kNone = 0, kA = 1, kAB = 2, kABC = 3 };

template <Op op>
constexpr Reads reads() {
  if (op == Op::Fill) return kNone;
  if (op == Op::LerpTensor || op == Op::Addcmul || op == Op::Addcdiv) return kABC;
  if (op == Op::Mul || op == Op::Div || op == Op::Maximum || op == Op::Minimum || op == Op::Add ||
      op == Op::LerpScalar) {
    return kAB;
  }
  return kA;
}

template <Op op, class V>
TN_INLINE V apply(V a, V b, V c, V s) {
  if constexpr (op == Op::Copy) return a;
  if constexpr (op == Op::Neg) return -a;
  if constexpr (op == Op::Abs) return abs(a);
  if constexpr (op == Op::Sqrt) return sqrt(a);
  if constexpr (op == Op::Rsqrt) return 1 / sqrt(a);
  if constexpr (op == Op::Reciprocal) return 1 / a;
  if constexpr (op == Op::Sign) {
    const V one = 1 - V{} * 0;
    return a > 0 ? one : (a < 0 ? -one : V{});
  }
  if constexpr (op == Op::Fill) return s;
  if constexpr (op == Op::AddScalar) return a + s;
  if constexpr (op == Op::MulScalar) return a * s;
  if constexpr (op == Op::DivScalar) return a / s;
  if constexpr (op == Op::RevSubScalar) return s - a;
  if constexpr (op == Op::MaxScalar) return nan_or(a, s, a > s ? a : s);
  if constexpr (op == Op::MinScalar) return nan_or(a, s, a < s ? a : s);
  if constexpr (op == Op::PowScalar) return power(a, s);
  if constexpr (op == Op::Mul) return a * b;
  if constexpr (op == Op::Div) return a / b;
  if constexpr (op == Op::Maximum) return nan_or(a, b, a > b ? a : b);
  if constexpr (op == Op::Minimum) return nan_or(a, b, a < b ? a : b);
  if constexpr (op == Op::Add) return fma(b, s, a);
  if constexpr (op == Op::LerpScalar) return lerp(a, b, s);
  if constexpr (op == Op::LerpTensor) return lerp(a, b, c);
  if constexpr (op == Op::Addcmul) return fma(s * b, c, a);
  if constexpr (op == Op::Addcdiv) return a + s * b / c;
}

template <class T, Op op>
void step(void* dst_, const void* a_, const void* b_, const void* c_, double scalar, int64_t n) {
  using S = typename T::Storage;
  using V = typename T::Vector;
  constexpr Reads need = reads<op>();
  S* dst = static_cast<S*>(dst_);
  const S* a = static_cast<const S*>(a_);
  const S* b = static_cast<const S*>(b_);
  const S* c = static_cast<const S*>(c_);
  V s = splat(static_cast<typename T::Scalar>(scalar));
  // torch rounds the scalars of additions to a 16-bit dtype first, but not those of products.
  if constexpr (op == Op::AddScalar || op == Op::RevSubScalar || op == Op::Add)
    s = rounded_to<T>(s);
  int64_t i = 0;
  for (; i + T::width <= n; i += T::width) {
    V x{}, y{}, z{};
    if constexpr (need >= kA) x = T::load(a + i);
    if constexpr (need >= kAB) y = T::load(b + i);
    if constexpr (need >= kABC) z = T::load(c + i);
    T::store(dst + i, apply<op, V>(x, y, z, s));
  }
  if (i < n) {
    V x{}, y{}, z{};
    if constexpr (need >= kA) x = load_part<T>(a + i, n - i);
    if constexpr (need >= kAB) y = load_part<T>(b + i, n - i);
    if constexpr (need >= kABC) z = load_part<T>(c + i, n - i);
    store_part<T>(dst + i, n - i, apply<op, V>(x, y, z, s));
  }
}

// Op by op in the order of the enumeration.
#define TN_STEPS(T)                                                               \
  {&step<T, Op::Copy>,       &step<T, Op::Neg>,       &step<T, Op::Abs>,          \
   &step<T, Op::Sqrt>,       &step<T, Op::Rsqrt>,     &step<T, Op::Reciprocal>,   \
   &step<T, Op::Sign>,       &step<T, Op::Fill>,      &step<T, Op::AddScalar>,    \
   &step<T, Op::MulScalar>,  &step<T, Op::DivScalar>, &step<T, Op::RevSubScalar>, \
   &step<T, Op::MaxScalar>,  &step<T, Op::MinScalar>, &step<T, Op::PowScalar>,    \
   &step<T, Op::Mul>,        &step<T, Op::Div>,       &step<T, Op::Maximum>,      \
   &step<T, Op::Minimum>,    &step<T, Op::Add>,       &step<T, Op::LerpScalar>,   \
   &step<T, Op::LerpTensor>, &step<T, Op::Addcmul>,   &step<T, Op::Addcdiv>}
static_assert(int(Op::Addcdiv) == 23 && int(Op::kCount) == 24, "keep TN_STEPS in step with Op");

const MultiTensorTable kMultiTensorTable = {
    {TN_STEPS(F32), TN_STEPS(BF16), TN_STEPS(F16), TN_STEPS(F64)}};
#undef TN_STEPS

}  // namespace

const MultiTensorTable& multi_tensor_table() { return kMultiTensorTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
