"""Conveniences for making the expressions of a loop kernel."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.codegen.loop import Access, Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group

Number = bool | int | float | complex
Operand = Scalar | Number


def const(value: Number, dtype: DType) -> Scalar:
    """A constant; `value` must be exact in `dtype`."""
    return Scalar.make("const", dtype, value=value)


def load(
    dtype: DType,
    slot: int,
    strides: Sequence[int],
    offset: int = 0,
    *,
    indices: Sequence[tuple[Scalar, int]] = (),
    mask: Scalar | None = None,
    other: Operand = 0,
) -> Scalar:
    """An element of a slot; where `mask` is false, `other` and no read."""
    access = Access(slot, tuple(strides), offset, tuple(indices))
    if mask is None:
        return Scalar.make("load", dtype, access=access)
    return Scalar.make("load", dtype, (mask, _operand(other, dtype)), access=access)


def index(dim: int, dtype: DType = DType.S64) -> Scalar:
    """The position along a dimension of the kernel."""
    return Scalar.make("index", dtype, dim=dim)


def _operand(value: Operand, dtype: DType) -> Scalar:
    return value if isinstance(value, Scalar) else const(value, dtype)


def op(operator: Op, *srcs: Operand, dtype: DType | None = None) -> Scalar:
    """An elementwise operator; numbers become constants of the type of the first Scalar.

    Args:
        operator: Of Group.ELEMENTWISE; for COMPARE use `compare`, for SELECT `select`.
        srcs: Operands, at least one of them a Scalar.
        dtype: Type of the result; by default that of the operands (pred for predicates).
    """
    assert operator in Group.ELEMENTWISE
    typed = next(s for s in srcs if isinstance(s, Scalar))
    if dtype is None:
        dtype = DType.PRED if operator in (Op.IS_NAN, Op.IS_FINITE) else typed.dtype
    operands = tuple(_operand(s, typed.dtype) for s in srcs)
    return Scalar.make("op", dtype, operands, op=operator)


def convert(value: Scalar, dtype: DType) -> Scalar:
    """The value as another type (the same expression if it is of that type)."""
    return value if value.dtype is dtype else op(Op.CONVERT, value, dtype=dtype)


def compare(direction: str, a: Operand, b: Operand) -> Scalar:
    """The truth value of a EQ | NE | LT | LE | GT | GE b; at least one of them is a Scalar."""
    typed = a if isinstance(a, Scalar) else b
    assert isinstance(typed, Scalar)
    srcs = (_operand(a, typed.dtype), _operand(b, typed.dtype))
    return Scalar.make("op", DType.PRED, srcs, op=Op.COMPARE, direction=direction)


def select(condition: Scalar, yes: Operand, no: Operand) -> Scalar:
    """`yes` where the condition holds, else `no`; at least one of them a Scalar."""
    typed = yes if isinstance(yes, Scalar) else no
    assert isinstance(typed, Scalar)
    srcs = (condition, _operand(yes, typed.dtype), _operand(no, typed.dtype))
    return Scalar.make("op", typed.dtype, srcs, op=Op.SELECT)


def reduce_precision(value: Scalar, exponent_bits: int, mantissa_bits: int) -> Scalar:
    """REDUCE_PRECISION, whose attributes are constant operands in a loop kernel."""
    bits = (const(exponent_bits, DType.S32), const(mantissa_bits, DType.S32))
    return Scalar.make("op", value.dtype, (value, *bits), op=Op.REDUCE_PRECISION)


def reduce(operator: Op, value: Scalar, dtype: DType | None = None) -> Scalar:
    """The reduction of `value` over all REDUCE dimensions, accumulated in `dtype`."""
    return Scalar.make("reduce", dtype or value.dtype, (value,), op=operator)


def arg(operator: Op, value: Scalar, dtype: DType = DType.S64) -> Scalar:
    """Where the least (MINIMUM) or greatest (MAXIMUM) value is along the REDUCE dimension."""
    return Scalar.make("arg", dtype, (value,), op=operator)
