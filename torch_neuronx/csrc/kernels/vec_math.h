// Elementary functions on vectors of float. Error bounds (against the exact value, in units in the
// last place of float32) are those that tests/kernels/test_pointwise.py checks.
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

// e^(x + low) for a tiny correction `low`, x already in [-104, 104].
TN_INLINE vf exp_reduced(vf x, vf low) {
  const vf biased = fma(x, kLog2e, kRound);
  const vf n = biased - kRound;
  vf r = fma(n, -kLn2Hi, x);
  r = fma(n, -kLn2Lo, r) + low;
  vf p = horner(r, 1.38144614e-3f, 8.36878084e-3f, 4.16683927e-2f, 1.66665196e-1f, 4.9999994e-1f);
  p = fma(p * r, r, r) + 1.0f;
  return scale_by_power(p, n, biased);
}

// e^x, at most 1.1 ulp; NaN stays NaN, overflow gives inf, underflow goes through denormals to 0.
TN_INLINE vf exp(vf x) {
  const vf clamped = min2(splat(104.0f), max2(splat(-104.0f), x));
  const vf biased = fma(clamped, kLog2e, kRound);
  const vf n = biased - kRound;
  vf r = fma(n, -kLn2Hi, clamped);
  r = fma(n, -kLn2Lo, r);
  vf p = horner(r, 1.38144614e-3f, 8.36878084e-3f, 4.16683927e-2f, 1.66665196e-1f, 4.9999994e-1f);
  p = fma(p * r, r, r) + 1.0f;
  return scale_by_power(p, n, biased);
}

// e^x for x <= 0 (or NaN) with about 20 good bits: for results that are rounded to 16-bit formats.
TN_INLINE vf exp_rough(vf x) {
  const vf clamped = max2(splat(-104.0f), x);
  const vf biased = fma(clamped, kLog2e, kRound);
  const vf n = biased - kRound;
  const vf r = fma(n, -0.693147182f, clamped);
  vf p = horner(r, 8.31248332e-3f, 4.18905579e-2f, 1.66671157e-1f, 4.99992281e-1f);
  p = fma(p * r, r, r) + 1.0f;
  return scale_by_power(p, n, biased);
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

// 1 / (1 + e^-x), at most 2.5 ulp.
TN_INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

// At most 1.4 ulp; keeps the sign of zero.
TN_INLINE vf tanh(vf x) {
  const vf t = abs(x);
  const vf z = x * x;
  const vf p = horner(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                      1.33314422036e-1f, -3.33332819422e-1f);
  const vf small = fma(p * z, x, x);
  const vf large = 1.0f - 2.0f / (exp(t + t) + 1.0f);
  const vf signed_large = (vf)((vi)large | ((vi)x & (vi)splat(-0.0f)));
  return t < 0.625f ? small : signed_large;
}

// The normal distribution function and e^(-x^2/2), both good to a few ulp in the far tail too:
// P(-t) = e^(-t^2/2) * R(t) with R smooth, so no 1 + erf cancellation. NaN gives NaN.
template <bool kRough>
TN_INLINE vf normal_cdf(vf x, vf* bell) {
  const vf t = min2(splat(14.6f), abs(x));
  vf tail;
  if constexpr (kRough) {
    *bell = exp_rough(t * t * -0.5f);
    const vf v = fma(fast_reciprocal(t + 3.25f), -6.5f, 1.0f);
    tail = *bell * horner(v, -0.00118970417f, 0.0011166709f, 0.0124931494f, -0.0546682179f,
                          0.125239998f, -0.196451411f, 0.113451689f);
  } else {
    const vf square = t * t;
    const vf low = fma(t, t, -square);
    *bell = exp_reduced(square * -0.5f, low * -0.5f);
    const vf v = fma(fast_reciprocal(t + 3.0f), -6.0f, 1.0f);
    tail = *bell * horner(v, 5.30624529e-05f, 0.000114910741f, -0.000338918588f, -0.000983195263f,
                          0.00290435296f, 0.00613191631f, -0.0462132581f, 0.123225041f,
                          -0.206402615f, 0.121513948f);
  }
  return x < 0.0f ? tail : 1.0f - tail;
}

}  // namespace torch_neuronx::kernels::TN_ISA
