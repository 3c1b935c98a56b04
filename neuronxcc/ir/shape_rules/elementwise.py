"""Rules of constants and elementwise operators."""

from __future__ import annotations

from neuronxcc.ir.dtypes import COMPLEX, FLOATS, FLOATS8, DType
from neuronxcc.ir.node import Literal, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    COMPLEX_OF,
    DIRECTIONS,
    INTEGERS,
    NUMBERS,
    PRED,
    REAL,
    REAL_OF,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dtype,
    choice,
    equal_types,
)

_UNARY_DTYPES: dict[Op, frozenset[DType]] = {
    **dict.fromkeys((Op.ABS, Op.NEGATE, Op.SIGN), NUMBERS),
    **dict.fromkeys((Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC), REAL),
    **dict.fromkeys((Op.ERF, Op.ERFC, Op.ERFINV, Op.LGAMMA, Op.DIGAMMA), REAL),
    Op.NOT: PRED | INTEGERS,
    Op.POPCNT: INTEGERS,
    Op.CONJ: COMPLEX,
}
_BINARY_DTYPES: dict[Op, frozenset[DType]] = {
    **dict.fromkeys((Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.DIVIDE, Op.POWER), NUMBERS),
    Op.REMAINDER: INTEGERS | REAL,
    **dict.fromkeys((Op.MAXIMUM, Op.MINIMUM), PRED | INTEGERS | REAL),
    **dict.fromkeys((Op.ATAN2, Op.NEXTAFTER, Op.COPYSIGN), REAL),
    **dict.fromkeys((Op.AND, Op.OR, Op.XOR), PRED | INTEGERS),
    **dict.fromkeys((Op.SHIFT_LEFT, Op.SHIFT_RIGHT_ARITHMETIC, Op.SHIFT_RIGHT_LOGICAL), INTEGERS),
}


def constant_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the literal."""
    arity(op, types, 0)
    if not isinstance(attrs["literal"], Literal):
        raise ShapeError(op, f"literal {attrs['literal']!r}; must be a Literal")
    return (attrs["literal"].type,)


def unary_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """The type of the operand; the absolute value of a complex number is real."""
    arity(op, types, 1)
    (x,) = types
    check_dtype(op, x.dtype, _UNARY_DTYPES.get(op, REAL | COMPLEX))
    if op is Op.ABS and x.dtype.is_complex:
        return (TensorType(REAL_OF[x.dtype], x.shape),)
    return (x,)


def predicate_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """A pred for every float."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, FLOATS)
    return (TensorType(DType.PRED, types[0].shape),)


def part_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """The real type of a complex one."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, COMPLEX)
    return (TensorType(REAL_OF[types[0].dtype], types[0].shape),)


def convert_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Any type to any other."""
    arity(op, types, 1)
    return (TensorType(attrs["dtype"], types[0].shape),)


def bitcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Numbers of one size."""
    arity(op, types, 1)
    src, dst = types[0].dtype, attrs["dtype"]
    if DType.PRED in (src, dst) or src.is_complex or dst.is_complex or src.itemsize != dst.itemsize:
        raise ShapeError(op, f"{src.value} to {dst.value}; both must be numbers of one size")
    return (TensorType(dst, types[0].shape),)


def reduce_precision_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Floats of at least 16 bits keep their type."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, REAL - FLOATS8)
    exponent, mantissa = attrs["exponent_bits"], attrs["mantissa_bits"]
    if exponent < 1 or mantissa < 0:
        raise ShapeError(op, f"exponent_bits {exponent}, mantissa_bits {mantissa}; need >= 1, >= 0")
    return types


def binary_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """Two operands of one type, which the operator takes."""
    arity(op, types, 2)
    result = equal_types(op, types)
    check_dtype(op, result.dtype, _BINARY_DTYPES[op])
    return (result,)


def complex_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """Two real parts of one type."""
    arity(op, types, 2)
    part = equal_types(op, types)
    check_dtype(op, part.dtype, COMPLEX_OF)
    return (TensorType(COMPLEX_OF[part.dtype], part.shape),)


def compare_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """A pred; complex numbers have no order."""
    arity(op, types, 2)
    operand = equal_types(op, types)
    direction = choice(op, "direction", attrs["direction"], DIRECTIONS)
    if operand.dtype.is_complex and direction not in ("EQ", "NE"):
        raise ShapeError(op, f"direction {direction} of {operand.dtype.value}; allowed: EQ NE")
    return (TensorType(DType.PRED, operand.shape),)


def select_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """A pred of the shape of two operands of one type."""
    arity(op, types, 3)
    result = equal_types(op, types[1:])
    if types[0] != TensorType(DType.PRED, result.shape):
        raise ShapeError(op, f"predicate {types[0]}; must be pred of shape {result.shape}")
    return (result,)


def clamp_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """Three operands of one type that has an order."""
    arity(op, types, 3)
    result = equal_types(op, types)
    check_dtype(op, result.dtype, INTEGERS | REAL)
    return (result,)
