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

// torch rounds the scalars of additions to a 16-bit dtype first, but not those of products.
template <class T, Op op>
TN_INLINE typename T::Vector step_scalar(double scalar) {
  const typename T::Vector s = splat(static_cast<typename T::Scalar>(scalar));
  constexpr bool kAddition = op == Op::AddScalar || op == Op::RevSubScalar || op == Op::Add;
  if constexpr (kAddition && T::bits < 24) return rounded_to<T>(s);
  return s;
}

template <class T, Op op>
void step(void* dst_, const void* a_, const void* b_, const void* c_, const double* scalars,
          int64_t n) {
  using S = typename T::Storage;
  using V = typename T::Vector;
  constexpr Reads need = reads<op>();
  S* dst = static_cast<S*>(dst_);
  const S* a = static_cast<const S*>(a_);
  const S* b = static_cast<const S*>(b_);
  const S* c = static_cast<const S*>(c_);
  const V s = step_scalar<T, op>(scalars[0]);
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

// A step's result as the next step would load it.
template <class T>
TN_INLINE typename T::Vector stored(typename T::Vector x) {
  if constexpr (T::bits < 24) return rounded_to<T>(x);
  return x;
}

template <class T>
struct DecayAddcmulRun {
  typename T::Vector s0, s1;
  TN_INLINE explicit DecayAddcmulRun(const double* scalars)
      : s0(step_scalar<T, Op::MulScalar>(scalars[0])),
        s1(step_scalar<T, Op::Addcmul>(scalars[1])) {}
  template <class V>
  TN_INLINE V operator()(V d, V, V b, V c) const {
    d = stored<T>(apply<Op::MulScalar, V>(d, d, d, s0));
    return apply<Op::Addcmul, V>(d, b, c, s1);
  }
};

// x / s for many x, rounded correctly, at half the price of a division: x times the reciprocal is
// off by less than two units in the last place, and each step of Newton's, whose remainder an fma
// gives exactly, leaves less than one and then none (Markstein 1990). That needs numbers
// far from the ends of the range; others are divided.
template <class V>
class Quotient {
 public:
  TN_INLINE explicit Quotient(V s) : s_(s), reciprocal_(1 / s) {}
  TN_INLINE V operator()(V x) const { return x / s_; }

 private:
  V s_, reciprocal_;
};

#if defined(__AVX2__) || defined(__AVX512F__)  // elsewhere there is no need, or `fma` rounds twice
template <>
class Quotient<vf> {
 public:
  TN_INLINE explicit Quotient(vf s)
      : s_(s), reciprocal_(1 / s), usable_(all_within(s, 0x1p-20f, 0x1p20f)) {}
  TN_INLINE vf operator()(vf x) const {
    if (!usable_ || !all_within(x, 0x1p-40f, 0x1p40f)) return x / s_;
    vf q = x * reciprocal_;
    q = fma(fma(-q, s_, x), reciprocal_, q);
    return fma(fma(-q, s_, x), reciprocal_, q);
  }

 private:
  vf s_, reciprocal_;
  bool usable_;
};
#endif

template <class T>
struct AdamParameterRun {
  Quotient<typename T::Vector> s0;
  typename T::Vector s1, s2;
  TN_INLINE explicit AdamParameterRun(const double* scalars)
      : s0(step_scalar<T, Op::DivScalar>(scalars[0])),
        s1(step_scalar<T, Op::AddScalar>(scalars[1])),
        s2(step_scalar<T, Op::Addcdiv>(scalars[2])) {}
  template <class V>
  TN_INLINE V operator()(V d, V a, V b, V) const {
    V t = stored<T>(sqrt(a));
    t = stored<T>(s0(t));
    t = stored<T>(apply<Op::AddScalar, V>(t, t, t, s1));
    return apply<Op::Addcdiv, V>(d, b, t, s2);
  }
};

template <class T, template <class> class R>
void run(void* dst_, const void* a_, const void* b_, const void* c_, const double* scalars,
         int64_t n) {
  using S = typename T::Storage;
  S* dst = static_cast<S*>(dst_);
  const S* a = static_cast<const S*>(a_);
  const S* b = static_cast<const S*>(b_);
  const S* c = static_cast<const S*>(c_);
  const R<T> f(scalars);
  int64_t i = 0;
  for (; i + T::width <= n; i += T::width) {
    T::store(dst + i, f(T::load(dst + i), T::load(a + i), T::load(b + i), T::load(c + i)));
  }
  if (i < n) {
    store_part<T>(dst + i, n - i,
                  f(load_part<T>(dst + i, n - i), load_part<T>(a + i, n - i),
                    load_part<T>(b + i, n - i), load_part<T>(c + i, n - i)));
  }
}

template <class T>
void adam(void* p_, void* m_, void* v_, const void* g_, const double* scalars, int64_t n) {
  using S = typename T::Storage;
  using V = typename T::Vector;
  S* p = static_cast<S*>(p_);
  S* m = static_cast<S*>(m_);
  S* v = static_cast<S*>(v_);
  const S* g = static_cast<const S*>(g_);
  const V decay = step_scalar<T, Op::MulScalar>(scalars[kDecay]);
  const V first = step_scalar<T, Op::LerpScalar>(scalars[kFirst]);
  const DecayAddcmulRun<T> moment(scalars + kSecond);
  const AdamParameterRun<T> parameter(scalars + kCorrection);
  const auto one = [&](V& x, V& mean, V& square, V grad) {
    x = stored<T>(apply<Op::MulScalar, V>(x, x, x, decay));
    mean = stored<T>(apply<Op::LerpScalar, V>(mean, grad, grad, first));
    square = stored<T>(moment(square, square, grad, grad));
    x = parameter(x, square, mean, mean);
  };
  int64_t i = 0;
  for (; i + T::width <= n; i += T::width) {
    V x = T::load(p + i), mean = T::load(m + i), square = T::load(v + i);
    one(x, mean, square, T::load(g + i));
    T::store(m + i, mean);
    T::store(v + i, square);
    T::store(p + i, x);
  }
  if (i < n) {
    const int64_t rest = n - i;
    V x = load_part<T>(p + i, rest), mean = load_part<T>(m + i, rest);
    V square = load_part<T>(v + i, rest);
    one(x, mean, square, load_part<T>(g + i, rest));
    store_part<T>(m + i, rest, mean);
    store_part<T>(v + i, rest, square);
    store_part<T>(p + i, rest, x);
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
    {TN_STEPS(F32), TN_STEPS(BF16), TN_STEPS(F16), TN_STEPS(F64)},
    {{&run<F32, DecayAddcmulRun>, &run<F32, AdamParameterRun>},
     {&run<BF16, DecayAddcmulRun>, &run<BF16, AdamParameterRun>},
     {&run<F16, DecayAddcmulRun>, &run<F16, AdamParameterRun>},
     {&run<F64, DecayAddcmulRun>, &run<F64, AdamParameterRun>}},
    {&adam<F32>, &adam<BF16>, &adam<F16>, &adam<F64>}};
#undef TN_STEPS

}  // namespace

const MultiTensorTable& multi_tensor_table() { return kMultiTensorTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
