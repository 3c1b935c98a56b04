// The loops behind pointwise.h for one instruction set; see isa.h for how it is compiled.
#pragma once

#include "kernels/pointwise.h"
#include "kernels/vec_math.h"

namespace torch_neuronx::kernels::TN_ISA {
namespace {

// 2 sqrt(2/pi), its product with the cubic coefficient of the tanh approximation, 1/sqrt(2 pi).
constexpr float kTwoBeta = 1.5957691216057308, kCubic = 1.5957691216057308 * 0.044715,
                kThreeCubic = 3 * 1.5957691216057308 * 0.044715, kBellScale = 0.3989422804014327;

// Every functor is f<T>(vectors...); T is the storage format that the result is rounded to.
struct GeluF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    if constexpr (T::bits < 24) {
      return x * normal_cdf_narrow<T>(x);
    } else {
      vf bell;
      return x * normal_cdf(x, &bell);
    }
  }
};
// 0.5 x (1 + tanh(u)) = x sigmoid(2u), without the cancellation of 1 + tanh.
template <class T>
TN_INLINE vf gelu_tanh_gate(vf x) {
  return sigmoid<T>(x * (x * x * kCubic + kTwoBeta));
}
struct GeluTanhF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return x * gelu_tanh_gate<T>(x);
  }
};
struct SiluF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return x * sigmoid<T>(x);
  }
};
struct SigmoidF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return sigmoid<T>(x);
  }
};
struct TanhF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return tanh<T>(x);
  }
};
struct ReluF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return max2(splat(0.0f), x);  // second argument: keeps NaN, and -0 like torch
  }
};
struct ExpF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return exp(x);
  }
};
// Both operations are correctly rounded, as those of compiled code are.
struct SqrtF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return sqrt(x);
  }
};
struct RsqrtF {
  template <class T>
  static TN_INLINE vf f(vf x) {
    return 1.0f / sqrt(x);
  }
};

struct GeluG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf x) {
    vf bell;
    const vf cdf = normal_cdf(x, &bell);
    return grad * (cdf + x * (bell * kBellScale));
  }
};
struct GeluTanhG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf x) {
    const vf s = gelu_tanh_gate<F32>(x);  // 1 - s may cancel
    const vf slope = x * x * kThreeCubic + kTwoBeta;
    return grad * (x * (s * (1.0f - s)) * slope + s);
  }
};
struct SiluG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf x) {
    const vf s = sigmoid<F32>(x);  // 1 - s may cancel
    return grad * s * (x * (1.0f - s) + 1.0f);
  }
};
struct SigmoidG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf y) {
    return grad * (1.0f - y) * y;
  }
};
struct TanhG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf y) {
    return grad * (1.0f - y * y);
  }
};
struct ReluG {
  template <class T>
  static TN_INLINE vf f(vf grad, vf y) {
    return y <= 0.0f ? splat(0.0f) : grad;  // NaN lets the gradient through, as torch does
  }
};

// kNarrow: torch rounds scalar and alpha to a 16-bit dtype of the array first.
struct AddF {
  static constexpr bool kNarrow = true;
  static TN_INLINE vf f(vf a, vf b, vf alpha) { return fma(b, alpha, a); }
};
struct SubF {
  static constexpr bool kNarrow = true;
  static TN_INLINE vf f(vf a, vf b, vf alpha) { return fma(b, -alpha, a); }
};
struct MulF {
  static constexpr bool kNarrow = false;
  static TN_INLINE vf f(vf a, vf b, vf) { return a * b; }
};
struct DivF {
  static constexpr bool kNarrow = false;
  static TN_INLINE vf f(vf a, vf b, vf) { return a / b; }
};

// A scalar operand: rounded if the operator wants that, and free of unusual NaNs (see store_pair).
template <class F, class T>
TN_INLINE vf scalar_operand(float x) {
  const vf v = splat(x != x ? __builtin_nanf("") : x);
  return F::kNarrow ? rounded_to<T>(v) : v;
}

template <class F, class T>
void unary_loop(const void* x_, void* out_, int64_t n) {
  using S = typename T::Storage;
  const S* x = static_cast<const S*>(x_);
  S* out = static_cast<S*>(out_);
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const Pair v = T::load_pair(x + i);
    T::store_pair(out + i, {F::template f<T>(v.a), F::template f<T>(v.b)});
  }
  for (; i + W <= n; i += W) T::store(out + i, F::template f<T>(T::load(x + i)));
  if (i < n) {
    store_part<T>(out + i, n - i, F::template f<T>(load_part<T>(x + i, n - i)));
  }
}

template <class F, class T>
void grad_loop(const void* grad_, const void* saved_, void* out_, int64_t n) {
  using S = typename T::Storage;
  const S* grad = static_cast<const S*>(grad_);
  const S* saved = static_cast<const S*>(saved_);
  S* out = static_cast<S*>(out_);
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const Pair g = T::load_pair(grad + i), s = T::load_pair(saved + i);
    T::store_pair(out + i, {F::template f<T>(g.a, s.a), F::template f<T>(g.b, s.b)});
  }
  for (; i + W <= n; i += W) {
    T::store(out + i, F::template f<T>(T::load(grad + i), T::load(saved + i)));
  }
  if (i < n) {
    const vf g = load_part<T>(grad + i, n - i), s = load_part<T>(saved + i, n - i);
    store_part<T>(out + i, n - i, F::template f<T>(g, s));
  }
}

template <class F, class T>
void binary_loop(const void* a_, const void* b_, void* out_, int64_t n, float alpha_) {
  using S = typename T::Storage;
  const S* a = static_cast<const S*>(a_);
  const S* b = static_cast<const S*>(b_);
  S* out = static_cast<S*>(out_);
  const vf alpha = scalar_operand<F, T>(alpha_);
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const Pair x = T::load_pair(a + i), y = T::load_pair(b + i);
    T::store_pair(out + i, {F::f(x.a, y.a, alpha), F::f(x.b, y.b, alpha)});
  }
  for (; i + W <= n; i += W) T::store(out + i, F::f(T::load(a + i), T::load(b + i), alpha));
  if (i < n) {
    store_part<T>(out + i, n - i,
                  F::f(load_part<T>(a + i, n - i), load_part<T>(b + i, n - i), alpha));
  }
}

template <class F, class T, bool kReverse>
void scalar_loop(const void* a_, float scalar, void* out_, int64_t n, float alpha_) {
  using S = typename T::Storage;
  const S* a = static_cast<const S*>(a_);
  S* out = static_cast<S*>(out_);
  const vf alpha = scalar_operand<F, T>(alpha_), b = scalar_operand<F, T>(scalar);
  const auto apply = [&](vf x) __attribute__((always_inline)) {
    return kReverse ? F::f(b, x, alpha) : F::f(x, b, alpha);
  };
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const Pair x = T::load_pair(a + i);
    T::store_pair(out + i, {apply(x.a), apply(x.b)});
  }
  for (; i + W <= n; i += W) T::store(out + i, apply(T::load(a + i)));
  if (i < n) store_part<T>(out + i, n - i, apply(load_part<T>(a + i, n - i)));
}

#define TN_ROW(loop, ...) \
  {&loop<__VA_ARGS__, F32>, &loop<__VA_ARGS__, BF16>, &loop<__VA_ARGS__, F16>}
#define TN_SCALAR_ROW(F, reverse) \
  {&scalar_loop<F, F32, reverse>, &scalar_loop<F, BF16, reverse>, &scalar_loop<F, F16, reverse>}

const PointwiseTable kPointwiseTable = {
    {TN_ROW(unary_loop, GeluF), TN_ROW(unary_loop, GeluTanhF), TN_ROW(unary_loop, SiluF),
     TN_ROW(unary_loop, SigmoidF), TN_ROW(unary_loop, TanhF), TN_ROW(unary_loop, ReluF),
     TN_ROW(unary_loop, ExpF), TN_ROW(unary_loop, SqrtF), TN_ROW(unary_loop, RsqrtF)},
    {TN_ROW(grad_loop, GeluG), TN_ROW(grad_loop, GeluTanhG), TN_ROW(grad_loop, SiluG),
     TN_ROW(grad_loop, SigmoidG), TN_ROW(grad_loop, TanhG), TN_ROW(grad_loop, ReluG)},
    {TN_ROW(binary_loop, AddF), TN_ROW(binary_loop, SubF), TN_ROW(binary_loop, MulF),
     TN_ROW(binary_loop, DivF)},
    {TN_SCALAR_ROW(AddF, false), TN_SCALAR_ROW(SubF, false), TN_SCALAR_ROW(MulF, false),
     TN_SCALAR_ROW(DivF, false)},
    {TN_SCALAR_ROW(AddF, true), TN_SCALAR_ROW(SubF, true), TN_SCALAR_ROW(MulF, true),
     TN_SCALAR_ROW(DivF, true)},
};
#undef TN_ROW
#undef TN_SCALAR_ROW

}  // namespace

const PointwiseTable& pointwise_table() { return kPointwiseTable; }

}  // namespace torch_neuronx::kernels::TN_ISA
