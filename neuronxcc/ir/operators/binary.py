"""Elementwise operators of two operands of one type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic, cast, maximum, minimum, precise
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    INTEGERS,
    NUMBERS,
    PRED,
    REAL,
    Types,
    arity,
    check_dtype,
    equal_types,
)
from neuronxcc.ir.operators.definition import (
    INT64,
    Cost,
    Gap,
    Kind,
    Operator,
    Rounding,
    Rule,
    Xla,
    each_type,
    takes,
)
from neuronxcc.targets import Engine

Function = Callable[[Array, Array], Array]


def _rule(dtypes: frozenset[DType]) -> Rule:
    def rule(op: Op, types: Types, _attrs: Mapping[str, Any]) -> Types:
        """Two operands of one type, which the operator takes."""
        arity(op, types, 2)
        result = equal_types(op, types)
        check_dtype(op, result.dtype, dtypes)
        return (result,)

    return rule


def _operator(
    op: Op,
    of: Function,
    dtypes: frozenset[DType],
    rounding: Rounding = Rounding.NONE,
    *,
    inside: Callable[[Array], Array] = arithmetic,
    gaps: tuple[Gap, ...] = (),
    complex: bool = False,  # noqa: A002 - the name of the field
    commutative: bool = False,
    xla: Xla = Xla.YES,
    instructions: int = 1,
) -> Operator:
    """A row of the table below; `inside` takes operands to the type that `of` computes in."""
    function = rounding is Rounding.FUNCTION
    return Operator(
        op=op,
        kind=Kind.BINARY,
        engine=Engine.SCALAR if function else Engine.VECTOR,
        cost=Cost.ELEMENTS,
        rule=_rule(dtypes),
        meaning=lambda node, a, b: cast(of(inside(a), inside(b)), node.dtype),
        cases=lambda: each_type(2, (3, 5)),
        gaps=gaps,
        complex=complex,
        commutative=commutative,
        rounding=rounding,
        xla=xla,
        instructions=instructions,
    )


def _signed(x: Array) -> bool:
    return x.dtype.kind == "i"


def _divide(a: Array, b: Array) -> Array:
    """Integers: toward zero; by zero all bits are set; the least by -1 is itself, as in XLA."""
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = np.floor_divide(a, safe)
    if _signed(a):
        inexact = (a - quotient * safe) != 0
        quotient = quotient + (inexact & ((a < 0) != (b < 0)))
    return np.where(b == 0, np.invert(np.zeros_like(a)), quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """Sign of the dividend; integers by zero: the dividend."""
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    if _signed(b):
        safe = np.where(safe == -1, 1, safe)  # the least by -1 overflows; both leave 0
    return np.where(b == 0, a, np.fmod(a, safe)).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    """Integers: wraps; a negative exponent gives 0 but for bases 1 and -1."""
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    result = np.ones_like(a)
    base, left = a.copy(), np.where(b < 0, 0, b).astype(b.dtype)
    while np.any(left):
        result = np.where(left & 1, result * base, result).astype(a.dtype)
        base, left = base * base, left >> 1
    if not _signed(a):
        return result
    odd = (b & 1) != 0
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, inverse, result).astype(a.dtype)


def _shift(kind: Op) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        """Amounts of the width or more (negative ones too) shift every bit out."""
        bits = a.dtype.itemsize * 8
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        signed = np.dtype(f"i{a.dtype.itemsize}")
        amount = b.astype(unsigned)
        over = amount >= bits
        inside = np.where(over, 0, amount).astype(unsigned)
        if kind is Op.SHIFT_RIGHT_ARITHMETIC:
            value = a.astype(signed)
            most = np.where(over, bits - 1, inside).astype(signed)
            return np.asarray(value >> most, a.dtype)
        value = a.astype(unsigned)
        shifted = value << inside if kind is Op.SHIFT_LEFT else value >> inside
        return np.where(over, 0, shifted).astype(unsigned).astype(a.dtype)

    return shift


def _itself(x: Array) -> Array:
    return x


_POWER_GAP = Gap(
    "NCC_EVRF062",
    lambda node: takes(node, INT64),
    accept="pow",
    says="power does not support 64-bit integer operands on this target; they are downcast to "
    "32-bit, exact to 2^31",
)
_SHIFT_GAP = Gap("NCC_EVRF022", lambda node: node.dtype.itemsize != 4)
_BITS = PRED | INTEGERS
_ORDERED = PRED | INTEGERS | REAL

OPERATORS = (
    _operator(Op.ADD, np.add, NUMBERS, Rounding.ONCE, complex=True, commutative=True),
    _operator(Op.SUBTRACT, np.subtract, NUMBERS, Rounding.ONCE, complex=True),
    _operator(Op.MULTIPLY, np.multiply, NUMBERS, Rounding.ONCE, complex=True, commutative=True),
    # Integers: toward zero.
    _operator(Op.DIVIDE, _divide, NUMBERS, Rounding.ONCE, complex=True, instructions=8),
    # It has the sign of the dividend.
    _operator(Op.REMAINDER, _remainder, INTEGERS | REAL, Rounding.ONCE, instructions=60),
    _operator(
        Op.POWER,
        _power,
        NUMBERS,
        Rounding.FUNCTION,
        inside=precise,
        gaps=(_POWER_GAP,),
        complex=True,
        instructions=60,
    ),
    _operator(Op.MAXIMUM, maximum, _ORDERED, commutative=True),  # NaN wins
    _operator(Op.MINIMUM, minimum, _ORDERED, commutative=True),  # NaN wins
    _operator(Op.ATAN2, np.arctan2, REAL, Rounding.FUNCTION, inside=precise, instructions=200),
    # A step of the type itself.
    _operator(Op.NEXTAFTER, np.nextafter, REAL, inside=_itself, xla=Xla.NO, instructions=10),
    _operator(Op.COPYSIGN, np.copysign, REAL, xla=Xla.NO),
    _operator(Op.AND, np.bitwise_and, _BITS, commutative=True),
    _operator(Op.OR, np.bitwise_or, _BITS, commutative=True),
    _operator(Op.XOR, np.bitwise_xor, _BITS, commutative=True),
    _operator(Op.SHIFT_LEFT, _shift(Op.SHIFT_LEFT), INTEGERS),
    _operator(
        Op.SHIFT_RIGHT_ARITHMETIC,
        _shift(Op.SHIFT_RIGHT_ARITHMETIC),
        INTEGERS,
        gaps=(_SHIFT_GAP,),
    ),
    _operator(Op.SHIFT_RIGHT_LOGICAL, _shift(Op.SHIFT_RIGHT_LOGICAL), INTEGERS),
)
