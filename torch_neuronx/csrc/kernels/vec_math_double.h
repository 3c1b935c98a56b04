// Logarithm and circular functions on vectors of double, by their power series.
#pragma once

#include "kernels/vec.h"

namespace torch_neuronx::kernels::TN_ISA {

// ln x for finite normal x > 0, within 2 ulp: 2 atanh((m - 1) / (m + 1)) by its series, |argument|
// < 0.172.
TN_INLINE vd log(vd x) {
  const vl shifted = (vl)x - 0x3fe6a09e667f3bcdL;  // sqrt(1/2)
  const vl exponent = shifted >> 52;
  const vd f = (vd)((vl)x - (exponent << 52)) - 1.0;
  // Exact conversion of a small integer: it becomes the low bits of 1.5 * 2^52.
  const vd e = (vd)(exponent + 0x4338000000000000L) - 0x1.8p52;
  const vd s = f / (f + 2.0);
  const vd z = s * s;
  vd p = vd{} + 2.0 / 23;
#pragma GCC unroll 10
  for (int k = 21; k >= 3; k -= 2) p = fma(p, z, vd{} + 2.0 / k);
  // ln 2 with 32 bits, times e exactly, and the rest of it.
  const vd tail = fma(p * z, s, e * 1.90821492927058770002e-10);
  return fma(e, vd{} + 6.93147180369123816490e-1, 2.0 * s + tail);
}

// pi^n / n!, with the sign of the n-th term of sine and cosine.
struct Terms {
  double at[20];
};
constexpr Terms make_terms() {
  Terms terms{};
  double value = 1.0;
  for (int n = 0; n < 20; ++n) {
    terms.at[n] = (n / 2) % 2 ? -value : value;
    value *= 3.14159265358979323846 / (n + 1);
  }
  return terms;
}

TN_INLINE void sincospi(vd x, vd* sine, vd* cosine) {
  constexpr Terms kTerms = make_terms();
  const vd biased = x * 2.0 + 0x1.8p52;
  const vl q = (vl)biased;
  const vd r = x - (biased - 0x1.8p52) * 0.5;
  const vd z = r * r;
  vd s = vd{} + kTerms.at[17], c = vd{} + kTerms.at[18];
#pragma GCC unroll 8
  for (int n = 15; n >= 1; n -= 2) s = fma(s, z, vd{} + kTerms.at[n]);
#pragma GCC unroll 9
  for (int n = 16; n >= 0; n -= 2) c = fma(c, z, vd{} + kTerms.at[n]);
  s *= r;
  const vl swap = (q & 1) != 0;
  *sine = (vd)((vl)(swap ? c : s) ^ ((q & 2) << 62));
  *cosine = (vd)((vl)(swap ? s : c) ^ (((q + 1) & 2) << 62));
}

}  // namespace torch_neuronx::kernels::TN_ISA
