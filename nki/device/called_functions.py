"""Bessel functions and derivatives of log gamma: calls of ATen's operators as elementwise IR.

They are computed in float32 by sums of terms of one sign, so that little is lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from neuronxcc.ir import build
from neuronxcc.ir.build import Operand, add, divide, multiply, power, select, subtract
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node

__all__ = ["FUNCTION_CALLS"]

Number = float | Node  # one for all elements, or each


def _sum_of_powers(x: Node, factors: Sequence[float]) -> Node:
    """Return a polynomial by Horner's rule; the highest power's factor comes first."""
    total: Node = multiply(x, factors[0])
    for factor in factors[1:-1]:
        total = multiply(add(total, factor), x)
    return add(total, factors[-1])


# --- modified Bessel functions of the first kind, of order 0 and 1 -------------------------------

# Up to 8 their power series in x^2 / 4 (NIST DLMF 10.25.2), whose next term is below 4e-12 of the
# sum; beyond that sqrt(x) exp(-x) I(x) as a polynomial of 8 / x, highest power first, which was
# interpolated at Chebyshev's points in float64: within 1.2e-8.
_SERIES: Final = 8.0
_TERMS: Final = 16
_FAR: Final = (
    (1.1605345e-05, -2.7872052e-06, 6.5458233e-05, 4.3611090e-04, 6.2336738e-03, 0.39894228),
    (-1.3473120e-05, 1.5261774e-06, -8.9401277e-05, -7.2801830e-04, -1.8700646e-02, 0.39894228),
)


def _bessel(order: int, *, scaled: bool) -> Callable[[Node], list[Node | None]]:
    """Return I of an order, or, scaled, exp(-|x|) times it."""
    factors = [
        1.0 / (math.factorial(k) * math.factorial(k + order)) for k in reversed(range(_TERMS))
    ]

    def meaning(x: Node) -> list[Node | None]:
        kind = x.dtype if x.dtype.is_float else DType.F32
        x = build.convert(x, DType.F32)
        size = build.abs_(x)
        near = _sum_of_powers(multiply(multiply(size, size), 0.25), factors)
        if order:
            near = multiply(near, multiply(size, 0.5))
        far = _sum_of_powers(divide(build.full_like(size, _SERIES), size), _FAR[order])
        far = multiply(far, build.rsqrt(size))
        if scaled:
            near = multiply(near, build.exp(build.negate(size)))
        else:
            # exp(x) is infinite before the function is.
            half = build.exp(multiply(size, 0.5))
            far = multiply(multiply(far, half), half)
        found = select(build.less_equal(size, _SERIES), near, far)
        # What is NaN is so in both.
        return [build.convert(build.copysign(found, x) if order else found, kind)]

    return meaning


# --- Hurwitz's zeta and polygamma ----------------------------------------------------------------

# Euler and Maclaurin's formula (NIST DLMF 25.11.5): so many terms are added up, and the rest is an
# integral with corrections by B(2k) / (2k)!. The next one is below 1e-9 of the sum.
_ADDED: Final = 6
_CORRECTIONS: Final = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)


def _positive_zeta(s: Number, q: Node, scale: float) -> Node:
    """Return the sum of (q + i) to the power of -s for i from 0 on, for positive q and s above 1.

    All of it is of positive terms but for the corrections, which are small.

    Args:
        s: the power.
        q: where the sum begins.
        scale: what the sum is multiplied by: it may be in range where the sum is not.
    """

    def powers(x: Node, exponent: Number) -> Node:
        if scale == 1.0:
            return power(x, exponent)
        assert isinstance(exponent, float)
        half = power(x, 0.5 * exponent)
        return multiply(multiply(half, scale), half)

    minus = -s if isinstance(s, float) else build.negate(s)
    total = powers(q, minus)
    for step in range(1, _ADDED):
        total = add(total, powers(add(q, float(step)), minus))
    rest = add(q, float(_ADDED))
    inverse = divide(1.0, rest)
    square = multiply(inverse, inverse)
    series: Number = _CORRECTIONS[-1]
    for k in reversed(range(1, len(_CORRECTIONS))):
        # Each correction is (s + 2k - 1) (s + 2k) / q^2 times the one before.
        both = multiply(multiply(square, _plus(s, 2 * k - 1)), _plus(s, 2 * k))
        series = add(multiply(both, series), _CORRECTIONS[k - 1])
    series = multiply(add(multiply(multiply(inverse, series), s), 0.5), inverse)
    whole = 1 / (s - 1) if isinstance(s, float) else divide(1.0, add(s, -1.0))
    return add(total, multiply(powers(rest, _plus(minus, 1)), add(series, whole)))


def _plus(s: Number, number: int) -> Number:
    return s + number if isinstance(s, float) else add(s, float(number))


def _zeta(s: Number, q: Node, sign: Number, scale: float = 1.0) -> Node:
    """Return Hurwitz's zeta for whole s where q is not positive.

    With f = q - floor(q) the terms of negative q + i are those of zeta(s, 1 - f) up to |q|, and
    ``zeta(s, q) = zeta(s, f) + (-1)^s (zeta(s, 1 - f) - zeta(s, 1 - q))``.

    Args:
        s: above 1.
        q: any number.
        sign: (-1)^s.
        scale: what the result is multiplied by.
    """
    positive = build.greater(q, 0.0)
    below, above = subtract(q, build.floor(q)), subtract(build.ceil(q), q)
    found = _positive_zeta(s, select(positive, q, below), scale)
    # Where it isn't needed, it is to be finite.
    more = _positive_zeta(s, select(positive, 1.0, above), scale)
    less = _positive_zeta(s, select(positive, 1.0, subtract(1.0, q)), scale)
    found = add(found, select(positive, 0.0, multiply(subtract(more, less), sign)))
    pole = build.and_(build.less_equal(q, 0.0), build.equal(q, build.floor(q)))
    return select(pole, math.inf, found)


def _zeta_call(s: Operand, q: Operand) -> list[Node | None]:
    """`special_zeta` of tensors or numbers."""
    tensors = [x for x in (s, q) if isinstance(x, Node)]
    kind = next((x.dtype for x in tensors if x.dtype.is_float), DType.F32)
    like = build.convert(tensors[0], DType.F32)
    s, q = (
        build.convert(x, DType.F32) if isinstance(x, Node) else build.full_like(like, float(x.real))
        for x in (s, q)
    )
    s, q = build.broadcast_together(s, q)
    half = multiply(s, 0.5)
    odd = build.not_equal(half, build.floor(half))
    found = _zeta(s, q, select(odd, build.full_like(s, -1.0), 1.0))
    # A negative number has no power that is not whole, and there is nothing below 1.
    broken = build.and_(build.less(q, 0.0), build.not_equal(s, build.floor(s)))
    whole = build.and_(build.less(q, 0.0), build.equal(q, build.floor(q)))
    broken = build.and_(broken, build.not_(whole))
    found = select(build.or_(broken, build.less(s, 1.0)), math.nan, found)
    return [build.convert(select(build.equal(s, 1.0), math.inf, found), kind)]


# Of more the two terms next to -1/2, n! 2^(n + 1), are no float32, and have no difference.
_MOST_ORDER: Final = 28


def _polygamma(n: int, x: Node) -> list[Node | None] | None:
    """The n-th derivative of digamma: (-1)^(n + 1) n! zeta(n + 1, x)."""
    kind = x.dtype if x.dtype.is_float else DType.F32
    x = build.convert(x, DType.F32)
    if n == 0:
        return [build.convert(build.digamma(x), kind)]
    if n > _MOST_ORDER:
        return None
    sign = 1.0 if n % 2 else -1.0  # of (-1)^(n + 1), which is that of the power as well
    found = _zeta(float(n + 1), x, sign, float(math.factorial(n)))
    return [build.convert(multiply(found, sign), kind)]


#: As `nki.device.calls.CALLS`.
FUNCTION_CALLS: Final[Mapping[str, Callable[..., Sequence[Node | None] | None]]] = {
    "aten::i0.default": _bessel(0, scaled=False),
    "aten::special_i0e.default": _bessel(0, scaled=True),
    "aten::special_i1.default": _bessel(1, scaled=False),
    "aten::special_i1e.default": _bessel(1, scaled=True),
    "aten::polygamma.default": _polygamma,
    "aten::special_zeta.default": _zeta_call,
    "aten::special_zeta.self_scalar": _zeta_call,
    "aten::special_zeta.other_scalar": _zeta_call,
}
