"""Complex numbers: pairs of vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuronxcc.codegen.llvm import math32, wide
from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.ir.op import Op


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex value."""

    re: Val
    im: Val


Value = Val | Pair


@dataclass(frozen=True, slots=True)
class _C:
    """A pair as numbers to calculate with."""

    re: Num
    im: Num

    def pair(self) -> Pair:
        re, im = self.re.em.join(self.re.val, self.im.val)
        return Pair(re, im)


def _multiply(a: _C, b: _C) -> _C:
    return _C(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _divide(a: _C, b: _C) -> _C:
    """By the larger part of the divisor first, so that nothing overflows that need not."""
    by_re = b.re.abs() >= b.im.abs()
    large, small = by_re.where(b.re, b.im), by_re.where(b.im, b.re)
    ratio = small / large
    # A zero divisor gives 0/0: let it be 0, so that the quotients become infinite or NaN.
    ratio = large.equals(0.0).where(0.0, ratio)
    scale = large + small * ratio
    re = by_re.where(a.re + a.im * ratio, a.re * ratio + a.im)
    im = by_re.where(a.im - a.re * ratio, a.im * ratio - a.re)
    return _C(re / scale, im / scale)


def _hypot(a: _C) -> Num:
    """|a|; infinite if a part is, even beside NaN."""
    em = a.re.em
    if a.re.val.elem == "double":
        return Num(em, em.call_each("hypot", "double", a.re.val, a.im.val))
    re, im = a.re.to("double"), a.im.to("double")
    size = (re * re + im * im).sqrt().to("float")
    infinite = a.re.abs().equals(float("inf")) | a.im.abs().equals(float("inf"))
    return infinite.where(float("inf"), size)


def _function(x: Num, single: Callable[[Num], Num], symbol: str) -> Num:
    if x.val.elem == "float":
        return single(x)
    return Num(x.em, x.em.call_each(symbol, "double", x.val))


def _exp(a: _C) -> _C:
    size = _function(a.re, math32.exp, "exp")
    cosine, sine = _function(a.im, wide.cos, "cos"), _function(a.im, wide.sin, "sin")
    # A real argument has a real result, also where the exponential is infinite.
    return _C(size * cosine, a.im.equals(0.0).where(a.im, size * sine))


def _log(a: _C) -> _C:
    em = a.re.em
    if a.re.val.elem == "float":
        re, im = a.re.to("double"), a.im.to("double")
        half = Num(em, em.call_each("log", "double", (re * re + im * im).val)) * 0.5
        return _C(half.to("float"), wide.atan2(a.im, a.re))
    size = Num(em, em.call_each("log", "double", _hypot(a).val))
    return _C(size, Num(em, em.call_each("atan2", "double", a.im.val, a.re.val)))


def _sign(a: _C) -> _C:
    size = _hypot(a)
    zero = size.equals(0.0)
    safe = zero.where(1.0, size)
    return _C(zero.where(0.0, a.re / safe), zero.where(0.0, a.im / safe))


_TO_COMPLEX: dict[Op, Callable[..., _C]] = {
    Op.ADD: lambda a, b: _C(a.re + b.re, a.im + b.im),
    Op.SUBTRACT: lambda a, b: _C(a.re - b.re, a.im - b.im),
    Op.MULTIPLY: _multiply,
    Op.DIVIDE: _divide,
    Op.NEGATE: lambda a: _C(-a.re, -a.im),
    Op.CONJ: lambda a: _C(a.re, -a.im),
    Op.EXP: _exp,
    Op.LOG: _log,
    Op.SIGN: _sign,
    Op.POWER: lambda a, b: _exp(_multiply(b, _log(a))),
}
_TO_REAL: dict[Op, Callable[..., Num]] = {
    Op.ABS: _hypot,
    Op.REAL: lambda a: a.re,
    Op.IMAG: lambda a: a.im,
    Op.IS_NAN: lambda a: a.re.is_nan() | a.im.is_nan(),
    Op.IS_FINITE: lambda a: (a.re.abs() < float("inf")) & (a.im.abs() < float("inf")),
}


def _as_c(em: Emitter, value: Value) -> _C:
    if isinstance(value, Val):
        return _C(Num(em, value), Num(em, em.like(value, 0.0)))
    return _C(Num(em, value.re), Num(em, value.im))


def apply(em: Emitter, op: Op, srcs: list[Value], direction: str = "") -> Value | None:
    """The operator on complex operands; None if there is no code for it."""
    if op is Op.COMPLEX:
        re, im = srcs
        assert isinstance(re, Val)
        assert isinstance(im, Val)
        return _C(Num(em, re), Num(em, im)).pair()
    operands = [_as_c(em, s) for s in srcs]
    if op is Op.COMPARE and direction in ("EQ", "NE"):
        a, b = operands
        equal = a.re.equals(b.re) & a.im.equals(b.im)
        return equal.val if direction == "EQ" else (~equal).val
    if op in _TO_REAL:
        return _TO_REAL[op](*operands).val
    if op in _TO_COMPLEX:
        return _TO_COMPLEX[op](*operands).pair()
    return None
