"""Complex numbers: pairs of vectors."""

from __future__ import annotations

import math
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
_MOST = 709.0  # its exponential is a double; those of the next ones overflow


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
    """By the larger part of the divisor first, as NumPy and PyTorch do it, step by step.

    So what is infinite or NaN is so there, too: the reciprocal of a part of 1e-39 is infinite.
    """
    by_re = b.re.abs() >= b.im.abs()
    large, small = by_re.where(b.re, b.im), by_re.where(b.im, b.re)
    ratio = small / large
    scale = 1.0 / (large + small * ratio)
    re = by_re.where(a.re + a.im * ratio, a.re * ratio + a.im) * scale
    im = by_re.where(a.im - a.re * ratio, a.im * ratio - a.re) * scale
    zero = b.re.equals(0.0) & b.im.equals(0.0)
    return _C(zero.where(a.re / b.re.abs(), re), zero.where(a.im / b.re.abs(), im))


def _hypot(a: _C) -> Num:
    """|a|; infinite if a part is, even beside NaN."""
    em = a.re.em
    if a.re.val.elem == "double":
        return Num(em, em.call_each("hypot", "double", a.re.val, a.im.val))
    re, im = a.re.to("double"), a.im.to("double")
    size = (re * re + im * im).sqrt().to("float")
    return _infinite(a).where(math.inf, size)


def _infinite(a: _C) -> Num:
    """Whether a part is."""
    return a.re.abs().equals(math.inf) | a.im.abs().equals(math.inf)


def _exp(a: _C) -> _C:
    """As C99: a size of 0 or infinity stays one, even beside an angle that is no number.

    The size may overflow where its product with a small cosine does not.
    """
    em, elem = a.re.em, a.re.val.elem
    if elem == "double":
        beyond = a.re > _MOST
        size = Num(em, em.call_each("exp", elem, beyond.where(a.re - _MOST, a.re).val))
        rest = beyond.pick(elem, math.exp(_MOST), 1.0)
        cosine, sine = (Num(em, em.call_each(f, elem, a.im.val)) * rest for f in ("cos", "sin"))
    else:
        size = wide.exp_of_double(a.re.to("double"))
        cosine, sine = wide.cos(a.im).to("double"), wide.sin(a.im).to("double")
    re, im = (size * cosine).to(elem), (size * sine).to(elem)
    # A real argument has a real result, also where the exponential is infinite.
    im = a.im.equals(0.0).where(a.im, im)
    no_angle = ~(a.im.abs() < math.inf)
    large, small = (no_angle & a.re.equals(x) for x in (math.inf, -math.inf))
    re = large.where(math.inf, small.where(0.0, re))
    return _C(re, small.where(math32.copy_sign(a.im.equals(0.0).pick(elem, 0.0, 0.0), a.im), im))


def _log(a: _C) -> _C:
    em = a.re.em
    if a.re.val.elem == "float":
        re, im = a.re.to("double"), a.im.to("double")
        half = Num(em, em.call_each("log", "double", (re * re + im * im).val)) * 0.5
        size = _infinite(a).where(math.inf, half.to("float"))
        return _C(size, wide.atan2(a.im, a.re))
    size = Num(em, em.call_each("log", "double", _hypot(a).val))
    return _C(size, Num(em, em.call_each("atan2", "double", a.im.val, a.re.val)))


def _power(a: _C, b: _C) -> _C:
    """exp(b log a); the product is C99's, which finds the infinity that NaN would hide."""
    log = _log(a)
    plain = _multiply(b, log)
    infinite = _infinite(b) | _infinite(log)
    for part in (x * y for x in (b.re, b.im) for y in (log.re, log.im)):
        infinite = infinite | part.abs().equals(math.inf)
    found = _multiply(_direction(b), _direction(log))
    lost = plain.re.is_nan() & plain.im.is_nan() & infinite
    return _exp(
        _C(
            lost.where(found.re * math.inf, plain.re),
            lost.where(found.im * math.inf, plain.im),
        )
    )


def _direction(a: _C) -> _C:
    """Of an infinite number parts of 1 and 0, of another its own parts, with zeros for NaN."""
    infinite = _infinite(a)

    def part(x: Num) -> Num:
        unit = math32.copy_sign(x.abs().equals(math.inf).pick(x.val.elem, 1.0, 0.0), x)
        return infinite.where(unit, x.is_nan().where(0.0, x))

    return _C(part(a.re), part(a.im))


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
    Op.POWER: _power,
}
_TO_REAL: dict[Op, Callable[..., Num]] = {
    Op.ABS: _hypot,
    Op.REAL: lambda a: a.re,
    Op.IMAG: lambda a: a.im,
    Op.IS_NAN: lambda a: a.re.is_nan() | a.im.is_nan(),
    Op.IS_FINITE: lambda a: (a.re.abs() < math.inf) & (a.im.abs() < math.inf),
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
