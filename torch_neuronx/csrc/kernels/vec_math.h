// Elementary functions on vectors of float. Error bounds (against the exact value, in units in the
// last place of float32) are those that tests/kernels/test_pointwise.py checks.
//
// exp, sigmoid, tanh and normal_cdf stand in neuronxcc/codegen/llvm/math32.py too, operation by
// operation, so that compiled code gives the same bits: tests/device/test_eager_regions.py. What
// includes this is compiled without contraction: a product and a sum are rounded unless fma says
// so.
#pragma once

#include "kernels/vec.h"

namespace torch_neuronx::kernels::TN_ISA {

constexpr float kLog2e = 1.44269504f;
// ln 2 in two parts; the first has 10 bits, so that its product with an exponent is exact.
constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;
// Adding this to |x| < 2^22 rounds x to an integer and leaves it in the low bits of the sum.
constexpr float kRound = 12582912.0f;

template <class... C>
TN_INLINE vf horner(vf x, float first, C... rest) {
  vf y = splat(first);
  ((y = fma(y, x, splat(rest))), ...);
  return y;
}

// p * 2^n for integral n in [-300, 300], rounded once (denormal results included).
TN_INLINE vf scale_by_power(vf p, vf n, vf biased) {
#if defined(__AVX512F__)
  (void)biased;
  return _mm512_scalef_ps(p, n);
#else
  (void)n;
  const vi i = (vi)biased - (vi)splat(kRound);
  const vi half = i >> 1;
  const vf first = (vf)((half + 127) << 23), second = (vf)((i - half + 127) << 23);
  return p * first * second;
#endif
}

// e^x, or e^(x + low) for a tiny correction `low`, |x| < 108.
template <class... Low>
TN_INLINE vf exp_reduced(vf x, Low... low) {
  const vf biased = fma(x, kLog2e, kRound);
  const vf n = biased - kRound;
  vf r = fma(n, -kLn2Hi, x);
  r = (fma(n, -kLn2Lo, r) + ... + low);
  vf p = horner(r, 1.38144614e-3f, 8.36878084e-3f, 4.16683927e-2f, 1.66665196e-1f, 4.9999994e-1f);
  p = fma(p * r, r, r) + 1.0f;
  return scale_by_power(p, n, biased);
}

// e^x, at most 1.1 ulp; NaN stays NaN, overflow gives inf, underflow goes through denormals to 0.
TN_INLINE vf exp(vf x) { return exp_reduced(min2(splat(104.0f), max2(splat(-104.0f), x))); }

// 2^x for -160 <= x <= 0 (or NaN), for results that are rounded to the 16-bit format T: the
// relative error is below 8e-5 for BF16 (0.02 ulp) and 3e-6 for F16 (0.006 ulp).
template <class T>
TN_INLINE vf exp2_rough(vf x) {
  const vf biased = x + kRound;
  const vf n = biased - kRound;
  const vf f = x - n;
  const vf p = T::bits == 8 ? horner(f, 0.0551716238f, 0.242611125f, 0.693260968f, 0.999928057f)
                            : horner(f, 0.00957009662f, 0.0559178591f, 0.240247443f, 0.693121791f,
                                     0.999999285f);
  return scale_by_power(p, n, biased);
}

// e^x for x <= 0 (or NaN), exact to rounding for F32, as good as exp2_rough for 16-bit formats.
template <class T>
TN_INLINE vf exp_negative(vf x) {
  if constexpr (T::bits == 24) {
    return exp_reduced(max2(splat(-104.0f), x));
  } else {
    return exp2_rough<T>(max2(splat(-155.0f), x * kLog2e));
  }
}

// ln x for finite normal x > 0 (no other argument is handled).
TN_INLINE vf log(vf x) {
  const vi shifted = (vi)x - 0x3f3504f3;  // sqrt(1/2)
  const vi exponent = shifted >> 23;
  const vf f = (vf)((vi)x - (exponent << 23)) - 1.0f;
  const vf e = __builtin_convertvector(exponent, vf);
  const vf z = f * f;
  vf y = horner(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
                3.3333331174e-1f);
  y = y * f * z;
  y = fma(e, kLn2Lo, y);
  y = fma(z, -0.5f, y);
  return fma(e, kLn2Hi, f + y);
}

// sin(pi x) and cos(pi x) for |x| <= 1.
TN_INLINE void sincospi(vf x, vf* sine, vf* cosine) {
  const vf biased = fma(x, 2.0f, kRound);
  const vi q = (vi)biased;
  const vf r = fma(biased - kRound, -0.5f, x);
  const vf z = r * r;
  const vf s = r * horner(z, 0.0810018554f, -0.599202096f, 2.55016255f, -5.16771269f, 3.14159274f);
  const vf c = horner(z, 0.231329709f, -1.33504462f, 4.05870724f, -4.93480206f, 1.0f);
  const vi swap = (q & 1) != 0;
  const vi sine_sign = (q & 2) << 30, cosine_sign = ((q + 1) & 2) << 30;
  *sine = (vf)((vi)(swap ? c : s) ^ sine_sign);
  *cosine = (vf)((vi)(swap ? s : c) ^ cosine_sign);
}

// 2^x for x <= 0 (or NaN), for functions whose results are rounded to the 16-bit format T: at most
// 1.5e-7 off relatively for F16 and 3e-6 for BF16, so that about one argument in 3,000 rounds to
// the neighbour of the exact value's rounding.
template <class T>
TN_INLINE vf exp2_negative(vf x) {
#if defined(__AVX512F__)
  const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const vf n = x - f, biased = n;
#else
  x = max2(splat(-155.0f), x);
  const vf biased = x + kRound;
  const vf n = biased - kRound;
  const vf f = x - n;
#endif
  const vf p = T::bits == 8 ? horner(f, 0.00958285294f, 0.0559064262f, 0.240240991f, 0.693124175f,
                                     1.0f)  // exactly 1 at 0: half of a denormal number is a tie
                            : horner(f, 0.00132764666f, 0.00967554096f, 0.0555071346f, 0.240221202f,
                                     0.693146944f, 1.00000012f);
  return scale_by_power(p, n, biased);
}

// e^(scale x) for x >= 0 and a negative scale; exact to rounding for F32.
template <class T>
TN_INLINE vf decay(vf x, float scale) {
  return T::bits == 24 ? exp_reduced(max2(splat(-104.0f), x * scale))
                       : exp2_negative<T>(x * (scale * kLog2e));
}

// 1 / (1 + e^-x), at most 2.5 ulp, denormal results included: e^-|x| cannot overflow.
template <class T>
TN_INLINE vf sigmoid(vf x) {
  const vf e = decay<T>(abs(x), -1.0f);
  const vf top = x < 0.0f ? e : splat(1.0f);
  return T::bits == 24 ? top / (1.0f + e) : top * fast_reciprocal(1.0f + e);
}

// e^x for |x| < 20, without a look at the ends; error 1 ulp and 2e-9 |x| besides.
TN_INLINE vf exp_inside(vf x) {
  const vf biased = fma(x, kLog2e, kRound);
  const vf r = fma(biased - kRound, -0.693147181f, x);
  const vf p = horner(r, 1.38144614e-3f, 8.36878084e-3f, 4.16683927e-2f, 1.66665196e-1f,
                      4.9999994e-1f, 1.0f, 1.0f);
  return (vf)((vi)p + ((vi)biased << 23));
}

// 1 - 2 / x for x in [2, 2^30], at most 0.6 ulp of the larger one of 1 and the result.
TN_INLINE vf one_minus_twice_reciprocal(vf x) {
#if defined(__AVX512F__)
  const vf y = _mm512_rcp14_ps(x);
  return fma(_mm512_fnmadd_ps(x, y, splat(2.0f)), y * -2.0f, 1.0f);
#else
  return 1.0f - 2.0f / x;
#endif
}

// At most 1.4 ulp; keeps the sign of zero.
template <class T>
TN_INLINE vf tanh(vf x) {
  const vf t = abs(x);
  const vf z = t * t;
  const vf p = horner(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                      1.33314422036e-1f, -3.33332819422e-1f);
  const vf small = fma(p * z, t, t);
  vf large;
  if constexpr (T::bits == 24) {
    const vf inside = min2(splat(9.1f), t);  // tanh 9.1 rounds to 1
    large = one_minus_twice_reciprocal(exp_inside(inside + inside) + 1.0f);
  } else {
    const vf e = decay<T>(t, -2.0f);
    large = (1.0f - e) * fast_reciprocal(1.0f + e);
  }
  return (vf)((vi)(t >= 0.625f ? large : small) | ((vi)x & (vi)splat(-0.0f)));
}

// t^2 - square, where `square` is t * t rounded.
TN_INLINE vf lost_of_square(vf t, vf square) {
  if constexpr (kFused) return fma(t, t, -square);
  const vf high = (vf)((vi)t & -4096);  // 12 bits, so that its square is exact
  const vf rest = t - high;
  return (high * high - square) + high * rest * 2.0f + rest * rest;
}

// The normal distribution function and e^(-x^2/2), both good to a few ulp in the far tail too:
// P(-t) = e^(-t^2/2) * R(t) with R smooth, so no 1 + erf cancellation. NaN gives NaN.
TN_INLINE vf normal_cdf(vf x, vf* bell) {
  const vf t = min2(splat(14.6f), abs(x));
  const vf square = t * t;
  const vf low = lost_of_square(t, square);
  *bell = exp_reduced(square * -0.5f, low * -0.5f);
  const vf v = fma(fast_reciprocal(t + 3.0f), -6.0f, 1.0f);
  const vf tail = *bell * horner(v, 5.30624529e-05f, 0.000114910741f, -0.000338918588f,
                                 -0.000983195263f, 0.00290435296f, 0.00613191631f, -0.0462132581f,
                                 0.123225041f, -0.206402615f, 0.121513948f);
  return x < 0.0f ? tail : 1.0f - tail;
}

// The same for results rounded to 16 bits, whose arguments have an exact square: within 6e-6 (BF16)
// and 5e-7 (F16) relatively. What multiplies the bell is a polynomial fitted to t <= 13.3 (BF16;
// its error may grow with t^2, as that of the bell does) and to t <= 6.2, where F16 ends.
template <class T>
TN_INLINE vf normal_cdf_narrow(vf x) {
  const vf t = min2(splat(14.6f), abs(x));  // there it is 0 already
  const vf e = exp2_negative<T>((t * t) * (-0.5f * kLog2e));
  const vf v = fma(fast_reciprocal(t + 3.5f), -7.0f, 1.0f);
  const vf r = T::bits == 8 ? horner(v, -0.00146840385f, -0.0013068323f, 0.0191402249f,
                                     -0.061696142f, 0.125845477f, -0.187136114f, 0.106345266f)
                            : horner(v, -0.0016244275f, -0.00152873748f, 0.0191213358f,
                                     -0.061637383f, 0.125851884f, -0.187139764f, 0.106345184f);
  const vf tail = e * r;
  return x < 0.0f ? tail : 1.0f - tail;  // a NaN comes back with the factor x
}

}  // namespace torch_neuronx::kernels::TN_ISA
