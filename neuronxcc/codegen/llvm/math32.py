"""Elementary functions of float32 vectors. The bounds are what test_codegen_math.py measures.

exp, tanh, logistic and normal_cdf, for float32 and for results that are rounded to 16 bits, are
those of eager mode's kernels (torch_neuronx/csrc/kernels/vec_math.h), operation by operation: a
compiled operator gives the bits of the separate one, which tests/device/test_eager_regions.py
holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from neuronxcc.codegen.llvm.emitter import Emitter, Val, vector_type
from neuronxcc.codegen.llvm.num import Num, horner
from neuronxcc.ir.dtypes import DType

LOG2E = 1.44269504
# ln 2 in two parts; the first has 10 bits, so that its product with an exponent is exact.
LN2_HI, LN2_LO = 0.693359375, -2.12194440e-4
# Adding this to |x| < 2^22 rounds x to an integer and leaves it in the low bits of the sum.
ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
_TINY = 1.17549435e-38  # the smallest normal number


def copy_sign(magnitude: Num, sign: Num) -> Num:
    """A non-negative magnitude with the sign bit of `sign`."""
    integer, bit = ("i32", -(2**31)) if magnitude.val.elem == "float" else ("i64", -(2**63))
    return (magnitude.bits(integer) | (sign.bits(integer) & bit)).bits(magnitude.val.elem)


def _sixteens(em: Emitter, one: Callable[..., Val], *operands: Val) -> Val:
    """An instruction on 16 lanes, applied to any number of lanes."""
    lanes = operands[0].lanes
    if not lanes:
        return em.extract(one(*(em.splat(x, 16) for x in operands)), 0)
    if lanes == 16:
        return one(*operands)
    parts = []
    for first in range(0, lanes, 16):
        index = [i if i < lanes else -1 for i in range(first, first + 16)]
        parts.append(one(*(em.shuffle(x, None, index) for x in operands)))
    while len(parts) > 1:
        whole = range(2 * parts[0].lanes)
        if len(parts) % 2:
            parts.append(em.poison("float", parts[0].lanes))
        parts = [em.shuffle(a, b, whole) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0] if parts[0].lanes == lanes else em.shuffle(parts[0], None, range(lanes))


def _scalef(em: Emitter, p: Val, n: Val) -> Val:
    """AVX-512's p * 2^n."""
    name = "@llvm.x86.avx512.mask.scalef.ps.512"
    vec = vector_type("float", 16)
    em.declarations[name] = f"declare {vec} {name}({vec}, {vec}, {vec}, i16, i32)"

    def one(a: Val, b: Val) -> Val:
        call = f"call {vec} {name}({a.typed}, {b.typed}, {vec} zeroinitializer, i16 -1, i32 4)"
        return em.pure("float", 16, call, a, b)

    return _sixteens(em, one, *em.join(p, n))


def _scale(p: Num, n: Num, biased: Num) -> Num:
    """Result p * 2^n for integral n in [-300, 300], rounded once; `biased` is n + ROUND."""
    em = p.em
    if em.host.avx512:
        return Num(em, _scalef(em, p.val, n.val))
    power = biased.bits("i32") - _ROUND_BITS
    half = power >> 1
    first = ((half + 127) << 23).bits("float")
    second = ((power - half + 127) << 23).bits("float")
    return p * first * second


def _approximate_reciprocal(x: Num) -> Num:
    """AVX-512's 1 / x to 14 bits; exact for x = 1."""
    em = x.em
    name = "@llvm.x86.avx512.rcp14.ps.512"
    vec = vector_type("float", 16)
    em.declarations[name] = f"declare {vec} {name}({vec}, {vec}, i16)"

    def approximate(part: Val) -> Val:
        call = f"call {vec} {name}({part.typed}, {vec} zeroinitializer, i16 -1)"
        return em.pure("float", 16, call, part)

    return Num(em, _sixteens(em, approximate, x.val))


def _reciprocal(x: Num) -> Num:
    """1 / x to 26 bits, for normal numbers of moderate size."""
    if not x.em.host.avx512:
        return 1.0 / x
    y = _approximate_reciprocal(x)
    return (-x).mad(y, 2.0) * y


def _fraction(x: Num) -> Num:
    """AVX-512's x less the nearest integer; 0 for infinities."""
    em = x.em
    name = "@llvm.x86.avx512.mask.reduce.ps.512"
    vec = vector_type("float", 16)
    em.declarations[name] = f"declare {vec} {name}({vec}, i32, {vec}, i16, i32)"

    def one(part: Val) -> Val:
        call = f"call {vec} {name}({part.typed}, i32 8, {vec} zeroinitializer, i16 -1, i32 4)"
        return em.pure("float", 16, call, part)

    return Num(em, _sixteens(em, one, x.val))


def _one_minus_twice_reciprocal(x: Num) -> Num:
    """1 - 2 / x for x in [2, 2^30], at most 0.6 ulp of the larger one of 1 and the result."""
    if not x.em.host.avx512:
        return 1.0 - 2.0 / x
    y = _approximate_reciprocal(x)
    # 14 bits, and 28 after one step of Newton's method: y (2 - x y).
    return (-x).mad(y, 2.0).mad(y * -2.0, 1.0)


def _exp_parts_quick(x: Num) -> tuple[Num, Num, Num]:
    """As _exp_parts; the error of the remainder is 3e-9 |x|."""
    biased = x.mad(LOG2E, ROUND)
    n = biased - ROUND
    return biased, n, n.mad(-math.log(2), x)


def _exp_inside(x: Num) -> Num:
    """e^x for |x| < 20, without a look at the ends; error 1 ulp and 2e-9 |x| besides."""
    biased, _, r = _exp_parts_quick(x)
    p = horner(r, *_EXP, 1.0, 1.0)
    return (p.bits("i32") + (biased.bits("i32") << 23)).bits("float")


def _exp_parts(x: Num) -> tuple[Num, Num, Num]:
    biased = x.mad(LOG2E, ROUND)
    n = biased - ROUND
    r = n.mad(-LN2_LO, n.mad(-LN2_HI, x))
    return biased, n, r


def _exp2_rough(x: Num) -> Num:
    """2^x for x in [-160, 130], to 13 bits."""
    biased = x + ROUND
    n = biased - ROUND
    p = horner(x - n, 0.0551716238, 0.242611125, 0.693260968, 0.999928057)
    return _scale(p, n, biased)


def exp_rough(x: Num) -> Num:
    """e^x with a relative error of 8e-5, a fiftieth of bfloat16's rounding; exp's ends."""
    return _exp2_rough((x * LOG2E).upper(-155.0).lower(130.0))


_EXP = (1.38144614e-3, 8.36878084e-3, 4.16683927e-2, 1.66665196e-1, 4.9999994e-1)


def exp(x: Num) -> Num:
    """e^x, at most 1.1 ulp; overflow gives inf, underflow goes through denormals to 0."""
    biased, n, r = _exp_parts(x.upper(-104.0).lower(104.0))
    return _exp_of(r, n, biased)


def _exp_of(r: Num, n: Num, biased: Num) -> Num:
    return _scale((horner(r, *_EXP) * r).mad(r, r) + 1.0, n, biased)


_EXP2_NARROW = {
    # Exactly 1 at 0: half of a denormal number is a tie.
    DType.BF16: (0.00958285294, 0.0559064262, 0.240240991, 0.693124175, 1.0),
    DType.F16: (0.00132764666, 0.00967554096, 0.0555071346, 0.240221202, 0.693146944, 1.00000012),
}


def _exp2_negative(x: Num, narrow: DType) -> Num:
    """2^x for x <= 0, for what is rounded to 16 bits: 3e-6 off for BF16, 1.5e-7 for F16."""
    if x.em.host.avx512:
        f = _fraction(x)
        n = biased = x - f
    else:
        x = x.upper(-155.0)
        biased = x + ROUND
        n = biased - ROUND
        f = x - n
    return _scale(horner(f, *_EXP2_NARROW[narrow]), n, biased)


def exp2(x: Num) -> Num:
    """2^x, at most 1.1 ulp."""
    x = x.upper(-151.0).lower(130.0)
    biased = x + ROUND
    n = biased - ROUND
    r = (x - n) * math.log(2)
    p = horner(r, *_EXP, 1.0, 1.0)
    return _scale(p, n, biased)


def expm1(x: Num) -> Num:
    """e^x - 1, at most 1.5 ulp; keeps the sign of zero."""
    biased, _, r = _exp_parts(x.upper(-30.0).lower(89.0))
    p = (horner(r, *_EXP) * r).mad(r, r)
    # 2^(n-1), so that results near the largest number don't overflow on the way.
    half = ((biased.bits("i32") - (_ROUND_BITS - 126)) << 23).bits("float")
    result = half.mad(p, half - 0.5) * 2.0
    return (x.abs() < 2.0**-40).where(x, result)


def _log_kernel(x: Num) -> Num:
    """Logarithm of finite normal x > 0."""
    shifted = x.bits("i32") - 0x3F3504F3  # sqrt(1/2)
    exponent = shifted >> 23
    f = (x.bits("i32") - (exponent << 23)).bits("float") - 1.0
    return _log_of(f, exponent.to("float"))


def _log_of(f: Num, e: Num) -> Num:
    """ln((1 + f) 2^e) for 1 + f in [sqrt(1/2), sqrt(2)]."""
    z = f * f
    y = horner(
        f, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip
    y = y * f * z
    y = e.mad(LN2_LO, y)
    y = z.mad(-0.5, y)
    return e.mad(LN2_HI, f + y)


def _log_ends(x: Num, result: Num, pole: Num) -> Num:
    """`result`, but -inf where pole == 0, NaN where pole < 0 or NaN, inf where it is inf."""
    inside = (pole > 0.0) & (pole < math.inf)
    outside = pole.equals(0.0).where(-math.inf, (pole < 0.0).where(math.nan, x))
    return inside.where(result, outside)


def log(x: Num) -> Num:
    """Natural logarithm, at most 1.1 ulp."""
    small = x < _TINY
    scaled = small.where(x * 2.0**23, x)
    shifted = scaled.bits("i32") - 0x3F3504F3
    exponent = shifted >> 23
    f = (scaled.bits("i32") - (exponent << 23)).bits("float") - 1.0
    e = small.where(exponent - 23, exponent).to("float")
    return _log_ends(x, _log_of(f, e), x)


def log1p(x: Num) -> Num:
    """ln(1 + x), at most 1.5 ulp; keeps the sign of zero."""
    u = 1.0 + x
    # What 1 + x lost in rounding, to first order.
    lost = (x - (u - 1.0)) / u
    result = _log_kernel(u) + lost
    result = (x.abs() < 2.0**-25).where(x, result)
    return _log_ends(x, result, u)


_TANH = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip


def tanh(x: Num) -> Num:
    """At most 1.4 ulp; keeps the sign of zero."""
    t = x.abs()
    z = t * t
    small = (horner(z, *_TANH) * z).mad(t, t)
    # tanh 9.1 rounds to 1.
    t = t.lower(9.1)
    large = _one_minus_twice_reciprocal(_exp_inside(t + t) + 1.0)
    return copy_sign((t >= 0.625).where(large, small), x)


def tanh_narrow(x: Num, narrow: DType) -> Num:
    """Tanh for a result that is rounded to 16 bits."""
    t = x.abs()
    z = t * t
    small = (horner(z, *_TANH) * z).mad(t, t)
    e = _exp2_negative(t * (-2 * LOG2E), narrow)
    large = (1.0 - e) * _reciprocal(1.0 + e)
    return copy_sign((t < 0.625).where(small, large), x)


def one_plus_tanh(x: Num) -> Num:
    """1 + tanh x = 2 / (1 + e^-2x), at most 3 ulp for x > -10, farther out 1e-6 of it.

    The sum of the two would have none of its digits right where tanh is close to -1.
    """
    parts = _exp_parts_quick if x.em.host.fma else _exp_parts
    biased, n, r = parts((-(x + x).abs()).upper(-104.0))
    e = _scale(horner(r, *_EXP, 1.0, 1.0), n, biased)
    top = (x < 0.0).where(e + e, 2.0)
    if not x.em.host.avx512:
        return top / (1.0 + e)
    d = 1.0 + e
    y = _approximate_reciprocal(d)
    return (-d).mad(y, 2.0) * y * top


def one_plus_tanh_rough(x: Num) -> Num:
    """1 + tanh x with a relative error of 1.5e-4."""
    return _reciprocal_rough(x * (-2 * LOG2E)) * 2.0


def _reciprocal_rough(x: Num) -> Num:
    """1 / (1 + 2^x)."""
    d = 1.0 + _exp2_rough(x.upper(-30.0).lower(130.0))
    return _approximate_reciprocal(d) if d.em.host.avx512 else 1.0 / d


_ERF = (
    8.675383287481964e-05, -0.0008211102103814483, 0.005206747446209192, -0.026861583814024925,
    0.11283732950687408, -0.37612634897232056,
)  # fmt: skip
_LOG_ERFC = (
    0.00020100062829442322, -0.0030923315789550543, 0.022420361638069153, -0.10432777553796768,
    -0.6367369294166565, -1.1279362440109253, -0.0001335420092800632,
)  # fmt: skip


def erf(x: Num) -> Num:
    """At most 1.2 ulp; keeps the sign of zero."""
    t = x.abs().lower(4.0)
    z = t * t
    small = t.mad(z.mad(horner(z, *_ERF), 0.12837916709551256), t)
    # 1 - erfc, whose logarithm is smooth.
    large = 1.0 - _exp_inside(horner(t, *_LOG_ERFC))
    return copy_sign((t >= 0.875).where(large, small), x)


def logistic(x: Num) -> Num:
    """1 / (1 + e^-x), at most 2.5 ulp, denormal results included: e^-|x| cannot overflow."""
    e = exp(-x.abs())
    return (x < 0.0).where(e, 1.0) / (1.0 + e)


def logistic_narrow(x: Num, narrow: DType) -> Num:
    """1 / (1 + e^-x) for a result that is rounded to 16 bits."""
    e = _exp2_negative(x.abs() * -LOG2E, narrow)
    return (x < 0.0).where(e, 1.0) * _reciprocal(1.0 + e)


# The normal distribution function's tail is P(-t) = e^(-t^2/2) R(t) with R smooth, so there is no
# 1 + erf that cancels; R is a polynomial of v = 1 - 2 c / (t + c).
_CDF = (
    5.30624529e-05, 0.000114910741, -0.000338918588, -0.000983195263, 0.00290435296,
    0.00613191631, -0.0462132581, 0.123225041, -0.206402615, 0.121513948,
)  # fmt: skip
_CDF_NARROW = {
    DType.BF16: (-0.00146840385, -0.0013068323, 0.0191402249, -0.061696142, 0.125845477,
                 -0.187136114, 0.106345266),
    DType.F16: (-0.0016244275, -0.00152873748, 0.0191213358, -0.061637383, 0.125851884,
                -0.187139764, 0.106345184),
}  # fmt: skip


def _lost_of_square(t: Num, square: Num) -> Num:
    """t^2 - square, where `square` is t * t rounded."""
    if t.em.host.fma:
        return t.mad(t, -square)
    high = (t.bits("i32") & -4096).bits("float")  # 12 bits, so that its square is exact
    rest = t - high
    return (high * high - square) + high * rest * 2.0 + rest * rest


def _bell(t: Num) -> Num:
    """e^(-t^2/2) for t up to 14.6, good to 1.1 ulp: what the square lost is put right."""
    square = t * t
    low = _lost_of_square(t, square)
    biased, n, r = _exp_parts(square * -0.5)
    return _exp_of(r + low * -0.5, n, biased)


def normal_pdf(x: Num) -> Num:
    """The density of the normal distribution, at most 2 ulp."""
    return _bell(x.abs().lower(14.6)) * (1 / math.sqrt(2 * math.pi))


def normal_cdf(x: Num) -> Num:
    """The normal distribution function, at most 7 ulp, in the far tail."""
    t = x.abs().lower(14.6)
    bell = _bell(t)
    v = _reciprocal(t + 3.0).mad(-6.0, 1.0)
    tail = bell * horner(v, *_CDF)
    return (x < 0.0).where(tail, 1.0 - tail)


def normal_cdf_narrow(x: Num, narrow: DType) -> Num:
    """The same for a result that is rounded to 16 bits, of a 16-bit number: its square is exact."""
    t = x.abs().lower(14.6)
    e = _exp2_negative((t * t) * (-0.5 * LOG2E), narrow)
    v = _reciprocal(t + 3.5).mad(-7.0, 1.0)
    tail = e * horner(v, *_CDF_NARROW[narrow])
    return (x < 0.0).where(tail, 1.0 - tail)


def rsqrt(x: Num) -> Num:
    """1 / sqrt(x), both correctly rounded."""
    return 1.0 / x.sqrt()
