"""Functions of float64 that the C library lacks; the others call it lane by lane."""

from __future__ import annotations

import math

from neuronxcc.codegen.llvm import wide
from neuronxcc.codegen.llvm.math32 import copy_sign
from neuronxcc.codegen.llvm.num import Num, horner


def _call(symbol: str, x: Num) -> Num:
    return Num(x.em, x.em.call_each(symbol, "double", x.val))


def logistic(x: Num) -> Num:
    """1 / (1 + e^-x) without overflow, at most 2.5 ulp."""
    e = _call("exp", -x.abs())
    return (x < 0.0).where(e, 1.0) / (1.0 + e)


def normal_cdf(x: Num) -> Num:
    """The normal distribution function, as 1/2 erfc(-x / sqrt(2))."""
    return _call("erfc", x * -math.sqrt(0.5)) * 0.5


def normal_pdf(x: Num) -> Num:
    """The density of the normal distribution."""
    return _call("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def erfinv(x: Num) -> Num:
    """The float32 approximation (good to 1e-10) improved by one step of Newton's method."""
    t = x.abs()
    y = wide.erfinv_of_double(t)
    # erfc in the upper half, where erf has no digits left.
    error = (t < 0.5).where(_call("erf", y) - t, (1.0 - t) - _call("erfc", y))
    step = error * (math.sqrt(math.pi) / 2) * _call("exp", y * y)
    # Halley's correction: the error of what is left is of third order.
    y = y - step / (1.0 + y * step)
    end = t.equals(1.0).pick("double", math.inf, math.nan)
    return copy_sign((t < 1.0).where(y, end), x)


def digamma(x: Num) -> Num:
    """NaN at the negative integers, -inf at 0, inf at -0.0."""
    below = x < 0.0
    y = below.where(1.0 - x, x)
    shift = Num(x.em, x.em.like(x.val, 0.0))
    for _ in range(12):
        small = y < 12.0
        shift = shift - small.where(1.0 / y, 0.0)
        y = small.where(y + 1.0, y)
    z = 1.0 / (y * y)
    series = z * horner(z, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)
    value = shift + (y < math.inf).where(_call("log", y) - 0.5 / y - series, y)
    turn = (x - x.call("roundeven")) * math.pi
    reflected = value - math.pi / _call("tan", turn)
    pole = x.call("trunc").equals(x) | x.equals(-math.inf)
    result = below.where(pole.where(math.nan, reflected), value)
    zero = copy_sign(Num(x.em, x.em.like(x.val, math.inf)), -x)
    return x.equals(0.0).where(zero, result)
