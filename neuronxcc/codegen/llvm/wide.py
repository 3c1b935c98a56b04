"""Functions of float32 that are computed in double: nearly correctly rounded, half as fast.

Relative errors inside are about 1e-11, so that the rounding to float32 is nearly the only one. Each
function takes and returns float32; `_log`, `exp_of_double`, `_sincos` and `_atan` work on doubles.
"""

from __future__ import annotations

import math
import struct

from neuronxcc.codegen.llvm.math32 import copy_sign
from neuronxcc.codegen.llvm.num import Num, horner

_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, left in the low bits
_PIO2_LO = 6.123233995736766e-17  # pi/2 - the double nearest to it


def _log(x: Num) -> Num:
    """Logarithm of a finite normal double x > 0; other arguments give anything."""
    shifted = x.bits("i64") - 0x3FE6A09E667F3BCD  # sqrt(1/2)
    exponent = shifted >> 52
    m = (x.bits("i64") - (exponent << 52)).bits("double")
    # ln m = 2 artanh(s)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = horner(z, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3)
    log_m = (s * z * series + s) * 2.0
    # The exponent is small: take it out of its bits by the rounding trick.
    e = (exponent + _bits(_ROUND)).bits("double") - _ROUND
    return e.mad(math.log(2), log_m)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _log_of_float(x: Num) -> Num:
    """Logarithm of a float32 as double: -inf for 0, NaN below, inf for inf."""
    d = x.to("double")
    inside = (d > 0.0) & (d < math.inf)
    outside = d.equals(0.0).where(-math.inf, (d < 0.0).where(math.nan, d))
    return inside.where(_log(d), outside)


def exp_of_double(x: Num) -> Num:
    """e^x of a double; beyond +-700 as there."""
    x = x.upper(-700.0).lower(700.0)
    biased = x.mad(1 / math.log(2), _ROUND)
    n = biased - _ROUND
    r = n.mad(-math.log(2), x)
    p = horner(r, *(1 / math.factorial(k) for k in range(10, -1, -1)))
    power = ((biased.bits("i64") - (_bits(_ROUND) - 1023)) << 52).bits("double")
    return p * power


def _sincos(x: Num) -> tuple[Num, Num]:
    """Sine and cosine of a double, |x| < 2^49."""
    biased = x.mad(2 / math.pi, _ROUND)
    n = biased - _ROUND
    # fma: the product is exact, so r is good to double precision even next to multiples of pi/2.
    r = n.fma(-_PIO2_LO, n.fma(-math.pi / 2, x))
    z = r * r
    sine = horner(z, *(1 / math.factorial(k) * (-1) ** (k // 2) for k in range(13, 2, -2)))
    sine = (sine * z).mad(r, r)
    cosine = horner(z, *(1 / math.factorial(k) * (-1) ** (k // 2) for k in range(14, -1, -2)))
    q = biased.bits("i64")
    swap = (q & 1).differs(0)
    sine_sign, cosine_sign = (q & 2) << 62, ((q + 1) & 2) << 62
    s = (swap.where(cosine, sine).bits("i64") ^ sine_sign).bits("double")
    c = (swap.where(sine, cosine).bits("i64") ^ cosine_sign).bits("double")
    return s, c


_ATAN = (
    0.0004329348036720501, -0.003278160616507213, 0.011646252131475715, -0.026338081107918583,
    0.04396674840325211, -0.060426030519864976, 0.07503949148997077, -0.09051616651701948,
    0.11105741076174087, -0.14285271370237146, 0.1999998083401805, -0.3333333300524746,
    0.9999999999906499,
)  # fmt: skip


def _atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y) for doubles y >= 0, x >= 0; 0 for (0, 0), pi/4 for (inf, inf)."""
    swap = y > x
    low, high = swap.where(x, y), swap.where(y, x)
    q = low / high
    q = high.equals(0.0).where(0.0, low.equals(math.inf).where(1.0, q))
    a = q * horner(q * q, *_ATAN)
    return swap.where(math.pi / 2 - a, a)


def _huge(x: Num, symbol: str, result: Num) -> Num:
    """The C library's result where |x| is so large that reducing it needs more bits of pi."""
    em = x.em
    large = x.abs() >= 2.0**49
    some = large.val
    if some.lanes:
        some = em.reduce_or(some)

    def slow() -> Num:
        return large.where(Num(em, em.call_each(symbol, "float", x.val)), result)

    return Num(em, em.either(some, lambda: slow().val, result.val))


def sin(x: Num) -> Num:
    """At most 0.6 ulp."""
    result = _huge(x, "sinf", _sincos(x.to("double"))[0].to("float"))
    return x.equals(0.0).where(x, result)


def cos(x: Num) -> Num:
    """At most 0.6 ulp."""
    return _huge(x, "cosf", _sincos(x.to("double"))[1].to("float"))


def tan(x: Num) -> Num:
    """At most 0.6 ulp."""
    s, c = _sincos(x.to("double"))
    return x.equals(0.0).where(x, _huge(x, "tanf", (s / c).to("float")))


def log2(x: Num) -> Num:
    """At most 0.6 ulp."""
    return (_log_of_float(x) * (1 / math.log(2))).to("float")


def log10(x: Num) -> Num:
    """At most 0.6 ulp."""
    return (_log_of_float(x) * (1 / math.log(10))).to("float")


def power(x: Num, y: Num) -> Num:
    """x^y as C99's powf, at most 0.6 ulp."""
    d = y.to("double")
    magnitude = x.abs()
    exponent = d * _log_of_float(magnitude)
    result = exp_of_double(exponent).to("float")
    # Exact powers of two come out a bit off: exp(0) is 1, but not exp(n ln 2).
    one = magnitude.equals(1.0) | y.equals(0.0)
    result = one.where(1.0, result)
    half = y * 0.5
    integral = y.call("trunc").equals(y)
    odd = integral & half.call("trunc").differs(half)
    negative = x.bits("i32") < 0
    signed = (negative & odd).where(-result, result)
    undefined = (x < 0.0) & (magnitude < math.inf) & ~integral & y.abs().differs(math.inf)
    special = (one & ~negative).where(result, signed)
    nan = x.is_nan() & y.differs(0.0)
    return (undefined | nan).where(math.nan, special)


def sinh(x: Num) -> Num:
    """At most 0.6 ulp."""
    t = x.abs().to("double")
    z = t * t
    small = (horner(z, 1 / 362880, 1 / 5040, 1 / 120, 1 / 6) * z).mad(t, t)
    e = exp_of_double(t)
    large = (e - 1.0 / e) * 0.5
    return copy_sign((t < 0.25).where(small, large).to("float"), x)


def cosh(x: Num) -> Num:
    """At most 0.6 ulp."""
    e = exp_of_double(x.abs().to("double"))
    return ((e + 1.0 / e) * 0.5).to("float")


def asinh(x: Num) -> Num:
    """At most 0.6 ulp."""
    t = x.abs().to("double")
    small = (t * t * (-1 / 6)).mad(t, t)
    large = _log(t + t.mad(t, 1.0).sqrt())
    result = (t < 1e-4).where(small, (t < math.inf).where(large, t))
    return copy_sign(result.to("float"), x)


def acosh(x: Num) -> Num:
    """At most 0.6 ulp; NaN below 1."""
    d = x.to("double")
    inside = (d >= 1.0) & (d < math.inf)
    result = _log(d + ((d - 1.0) * (d + 1.0)).sqrt())
    outside = d.equals(math.inf).where(d, math.nan)
    return inside.where(result, outside).to("float")


def atanh(x: Num) -> Num:
    """At most 0.6 ulp; infinite at +-1, NaN beyond."""
    t = x.abs().to("double")
    small = (t * t * (1 / 3)).mad(t, t)
    large = _log((1.0 + t) / (1.0 - t)) * 0.5
    end = t.equals(1.0).pick("double", math.inf, math.nan)
    result = (t < 1e-4).where(small, (t < 1.0).where(large, end))
    return copy_sign(result.to("float"), x)


def atan(x: Num) -> Num:
    """At most 0.6 ulp."""
    t = x.abs().to("double")
    result = _atan2(t, Num(t.em, t.em.like(t.val, 1.0)))
    return copy_sign(x.is_nan().where(x, result.to("float")), x)


def atan2(y: Num, x: Num) -> Num:
    """At most 0.6 ulp; signs of zeros as in C99."""
    angle = _atan2(y.abs().to("double"), x.abs().to("double"))
    angle = (x.bits("i32") < 0).where(math.pi - angle, angle)
    result = copy_sign(angle.to("float"), y)
    return (x.is_nan() | y.is_nan()).where(math.nan, result)


def asin(x: Num) -> Num:
    """At most 0.6 ulp; NaN beyond +-1."""
    t = x.abs().to("double")
    result = _atan2(t, ((1.0 - t) * (1.0 + t)).sqrt())
    return copy_sign((t <= 1.0).where(result, math.nan).to("float"), x)


def acos(x: Num) -> Num:
    """At most 0.6 ulp; NaN beyond +-1."""
    t = x.abs().to("double")
    result = _atan2(((1.0 - t) * (1.0 + t)).sqrt(), t)
    result = (x < 0.0).where(math.pi - result, result)
    return (t <= 1.0).where(result, math.nan).to("float")


# e^(x^2) erfc(x) (1 + 2x) as a polynomial of (x - 2) / (x + 2), 0 <= x <= 10.2
_ERFCX = (
    -7.444042118756482e-06, -2.735538583241355e-05, -3.2706595301304116e-06,
    0.00014369116052606555, 0.00020554552236408483, -0.0004513667785999806,
    -0.0014561562150397203, 0.0012706878623422652, 0.008722493082422036, -0.008033939963416553,
    -0.054219984617288275, 0.1640512760555925, -0.16603039820130785, -0.09276382652164679,
    1.2769783815557836,
)  # fmt: skip


def erfc(x: Num) -> Num:
    """At most 0.6 ulp, down to denormal results."""
    t = x.abs().to("double").lower(10.2)
    v = (t - 2.0) / (t + 2.0)
    tail = exp_of_double(-(t * t)) * horner(v, *_ERFCX) / t.mad(2.0, 1.0)
    return (x < 0.0).where(2.0 - tail, tail).to("float")


# erfinv(x) / x as polynomials: of w - 3.125, and of sqrt(w) - 3.25, with w = -ln(1 - x^2)
_ERFINV_CENTRE = (
    1.144750363113539e-12, -1.2490273739998071e-11, -3.0884983681904176e-11,
    1.0340381113645086e-09, -4.302765360466642e-09, -2.8933278390370216e-08,
    4.2432322910636785e-07, -1.3659508447140773e-06, -1.388446908112132e-05,
    0.00018673495286882107, -0.0007407005398644616, -0.006033671273012255, 0.24015818182941168,
    1.6536545627148522,
)  # fmt: skip
_ERFINV_TAIL = (
    6.27000159600882e-06, -3.9494396202317074e-05, 7.19180185729147e-05, 1.817253329165673e-05,
    -0.0003560471085002364, 0.000955223998798408, -0.0016881336508876759, 0.002491156432975363,
    -0.0037512186644320265, 0.0053709299267547875, 1.0052589679786295, 3.0838856103588004,
)  # fmt: skip


def erfinv_of_double(t: Num) -> Num:
    """For a double 0 <= t < 1, relative error 1e-10 up to 1 - 1e-7; other values give anything."""
    w = -_log((1.0 - t) * (1.0 + t))
    centre = horner(w - 3.125, *_ERFINV_CENTRE)
    tail = horner(w.sqrt() - 3.25, *_ERFINV_TAIL)
    return (w < 6.25).where(centre, tail) * t


def erfinv(x: Num) -> Num:
    """At most 0.6 ulp; infinite at +-1, NaN beyond."""
    t = x.abs().to("double")
    end = t.equals(1.0).pick("double", math.inf, math.nan)
    return copy_sign((t < 1.0).where(erfinv_of_double(t), end).to("float"), x)


def digamma(x: Num) -> Num:
    """About 1 ulp but near its zeros; NaN at the negative integers, -inf at 0, inf at -0.0."""
    d = x.to("double")
    below = d < 0.0
    y = below.where(1.0 - d, d)
    shift = Num(x.em, x.em.like(d.val, 0.0))
    for _ in range(8):
        small = y < 8.0
        shift = shift - small.where(1.0 / y, 0.0)
        y = small.where(y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * horner(z, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
    value = shift + (y < math.inf).where(_log(y) - 0.5 / y - series, y)
    s, c = _sincos((d - d.call("roundeven")) * math.pi)
    reflected = value - math.pi * c / s
    pole = d.call("trunc").equals(d) | d.equals(-math.inf)
    result = below.where(pole.where(math.nan, reflected), value).to("float")
    zero = copy_sign(Num(x.em, x.em.like(x.val, math.inf)), -x)
    return x.equals(0.0).where(zero, x.is_nan().where(x, result))
