"""Operators on integers and truth values: tables of what emits them."""

from __future__ import annotations

from collections.abc import Callable

from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


def _same(_em: Emitter, a: Val) -> Val:
    return a


def _instruction(opcode: str) -> Callable[..., Val]:
    return lambda em, a, b: em.binary(opcode, a, b)


def _pick(predicate: str) -> Callable[..., Val]:
    return lambda em, a, b: em.select(em.compare(predicate, a, b), a, b)


def _clamp(more: str, less: str) -> Callable[..., Val]:
    return lambda em, low, x, high: _pick(less)(em, _pick(more)(em, x, low), high)


def _divide(opcode: str) -> Callable[..., Val]:
    """As XLA: x / 0 is all ones, x % 0 is x; the smallest number divided by -1 wraps."""
    remainder = opcode.endswith("rem")

    def emit(em: Emitter, a: Val, b: Val) -> Val:
        a, b = em.join(a, b)
        zero = em.compare("eq", b, em.like(b, 0))
        unsafe = zero
        if opcode[0] == "s":
            smallest = em.like(a, -(1 << (BITS[a.elem] - 1)))
            wraps = em.binary(
                "and", em.compare("eq", a, smallest), em.compare("eq", b, em.like(b, -1))
            )
            unsafe = em.binary("or", zero, wraps)
        # a / 1 is a, which is also the wrapped quotient; a % 1 is 0.
        result = em.binary(opcode, a, em.select(unsafe, em.like(b, 1), b))
        return em.select(zero, a if remainder else em.like(a, -1), result)

    return emit


def _shift(opcode: str) -> Callable[..., Val]:
    """A shift by the width or more (or by a negative number) leaves zeros, or the sign."""

    def emit(em: Emitter, a: Val, b: Val) -> Val:
        a, b = em.join(a, b)
        width = BITS[a.elem]
        inside = em.compare("ult", b, em.like(b, width))
        if opcode == "ashr":
            return em.binary(opcode, a, em.select(inside, b, em.like(b, width - 1)))
        shifted = em.binary(opcode, a, em.select(inside, b, em.like(b, 0)))
        return em.select(inside, shifted, em.like(a, 0))

    return emit


def _integer_power(em: Emitter, a: Val, b: Val) -> Val:
    """By repeated squaring, wrapping; a negative exponent gives 0, except for bases 1 and -1."""
    base, exponent = em.join(a, b)
    one, zero = em.like(base, 1), em.like(base, 0)
    result, factor = one, base
    width = BITS[base.elem]
    for bit in range(width):
        mask = em.like(exponent, 1 << bit)
        is_set = em.compare("ne", em.binary("and", exponent, mask), zero)
        result = em.select(is_set, em.binary("mul", result, factor), result)
        factor = em.binary("mul", factor, factor)
    return result


def _signed_power(em: Emitter, a: Val, b: Val) -> Val:
    base, exponent = em.join(a, b)
    one, zero, minus = em.like(base, 1), em.like(base, 0), em.like(base, -1)
    result = _integer_power(em, base, exponent)
    odd = em.compare("ne", em.binary("and", exponent, one), zero)
    of_minus = em.select(odd, minus, one)
    negative = em.select(
        em.compare("eq", base, one),
        one,
        em.select(em.compare("eq", base, minus), of_minus, zero),
    )
    return em.select(em.compare("slt", exponent, zero), negative, result)


def _signed_sign(em: Emitter, a: Val) -> Val:
    zero, one, minus = em.like(a, 0), em.like(a, 1), em.like(a, -1)
    below = em.select(em.compare("slt", a, zero), minus, zero)
    return em.select(em.compare("sgt", a, zero), one, below)


ANY_INTEGER: dict[Op, Callable[..., Val]] = {
    Op.ADD: _instruction("add"),
    Op.SUBTRACT: _instruction("sub"),
    Op.MULTIPLY: _instruction("mul"),
    Op.AND: _instruction("and"),
    Op.OR: _instruction("or"),
    Op.XOR: _instruction("xor"),
    Op.NOT: lambda em, a: em.binary("xor", a, em.like(a, -1)),
    Op.NEGATE: lambda em, a: em.binary("sub", em.like(a, 0), a),
    Op.SHIFT_LEFT: _shift("shl"),
    Op.SHIFT_RIGHT_LOGICAL: _shift("lshr"),
    Op.SHIFT_RIGHT_ARITHMETIC: _shift("ashr"),
    Op.POPCNT: lambda em, a: em.intrinsic("ctpop", a.elem, a),
    Op.CEIL: _same,
    Op.FLOOR: _same,
    Op.TRUNC: _same,
    Op.ROUND_EVEN: _same,
    Op.REAL: _same,
    Op.IS_FINITE: lambda em, a: em.const("i1", 1, a.lanes),
    Op.IS_NAN: lambda em, a: em.const("i1", 0, a.lanes),
}
SIGNED = ANY_INTEGER | {
    Op.ABS: lambda em, a: em.intrinsic("abs", a.elem, a, extra="i1 false"),
    Op.SIGN: _signed_sign,
    Op.MAXIMUM: _pick("sgt"),
    Op.MINIMUM: _pick("slt"),
    Op.CLAMP: _clamp("sgt", "slt"),
    Op.DIVIDE: _divide("sdiv"),
    Op.REMAINDER: _divide("srem"),
    Op.POWER: _signed_power,
}
UNSIGNED = ANY_INTEGER | {
    Op.ABS: _same,
    Op.SIGN: lambda em, a: em.integer(em.compare("ne", a, em.like(a, 0)), a.elem, signed=False),
    Op.MAXIMUM: _pick("ugt"),
    Op.MINIMUM: _pick("ult"),
    Op.CLAMP: _clamp("ugt", "ult"),
    Op.DIVIDE: _divide("udiv"),
    Op.REMAINDER: _divide("urem"),
    Op.POWER: _integer_power,
}
PRED: dict[Op, Callable[..., Val]] = {
    Op.AND: _instruction("and"),
    Op.OR: _instruction("or"),
    Op.XOR: _instruction("xor"),
    Op.NOT: lambda em, a: em.binary("xor", a, em.like(a, 1)),
    Op.ADD: _instruction("or"),
    Op.MULTIPLY: _instruction("and"),
    Op.MAXIMUM: _instruction("or"),
    Op.MINIMUM: _instruction("and"),
    Op.CLAMP: lambda em, low, x, high: em.binary("and", em.binary("or", x, low), high),
}


def table(dtype: DType) -> dict[Op, Callable[..., Val]]:
    """The operators of an integer type or `pred`: called with the emitter and the operands."""
    if dtype is DType.PRED:
        return PRED
    return SIGNED if dtype.is_signed else UNSIGNED
