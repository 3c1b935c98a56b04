"""The operators of `nki.isa.alu` as expressions of loop kernels: the same names.

Arithmetic takes float32, or s64 where an engine computes with integers; bitvec operators take
unsigned integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.isa.alu import ALU, COMPARISONS

__all__ = ["EXPRESSIONS", "apply", "truth"]

Expression = Callable[[Scalar, Scalar], Scalar]

_DIRECTIONS = dict(
    zip(COMPARISONS, ("EQ", "NE", "LT", "LE", "GT", "GE"), strict=True)
)  # fmt: skip


def _zero(like: Scalar) -> Scalar:
    return build.const(0.0 if like.dtype.is_float else 0, like.dtype)


def truth(value: Scalar) -> Scalar:
    """Return whether a number is not 0, which NaN is not."""
    return build.compare("NE", value, _zero(value))


def _op(operator: Op) -> Expression:
    return lambda x, y: build.op(operator, x, y)


def _compare(direction: str) -> Expression:
    return lambda x, y: build.convert(build.compare(direction, x, y), x.dtype)


def _logical(operator: Op) -> Expression:
    return lambda x, y: build.convert(build.op(operator, truth(x), truth(y)), x.dtype)


def _shift(operator: Op) -> Expression:
    def shifted(x: Scalar, y: Scalar) -> Scalar:
        bits = 8 * x.dtype.itemsize
        inside = build.op(operator, x, build.op(Op.MINIMUM, y, bits - 1))
        return build.select(build.compare("GE", y, bits), 0, inside)

    return shifted


def _farther(direction: str) -> Expression:
    def chosen(x: Scalar, y: Scalar) -> Scalar:
        return build.select(
            build.compare(direction, build.op(Op.ABS, x), build.op(Op.ABS, y)), x, y
        )

    return chosen


def _rsqrt(x: Scalar, _: Scalar) -> Scalar:
    return build.op(Op.RSQRT, x)


EXPRESSIONS: Mapping[str, Expression] = MappingProxyType(
    {
        "invert": lambda x, _: build.op(Op.NOT, x),
        "bitwise_and": _op(Op.AND),
        "bitwise_or": _op(Op.OR),
        "bitwise_xor": _op(Op.XOR),
        "left_shift": _shift(Op.SHIFT_LEFT),
        "right_shift": _shift(Op.SHIFT_RIGHT_LOGICAL),
        "add": _op(Op.ADD),
        "subtract": _op(Op.SUBTRACT),
        "multiply": _op(Op.MULTIPLY),
        "maximum": _op(Op.MAXIMUM),
        "minimum": _op(Op.MINIMUM),
        **{name: _compare(direction) for name, direction in _DIRECTIONS.items()},
        "logical_and": _logical(Op.AND),
        "logical_or": _logical(Op.OR),
        "logical_xor": _logical(Op.XOR),
        "power": _op(Op.POWER),
        "abs_max": _farther("GT"),
        "abs_min": _farther("LT"),
        "abs": lambda x, _: build.op(Op.ABS, x),
        "square": lambda x, _: build.op(Op.MULTIPLY, x, x),
        "relu": lambda x, _: build.op(Op.MAXIMUM, x, _zero(x)),
        "rsqrt": _rsqrt,
        "reciprocal": lambda x, _: build.op(Op.DIVIDE, build.const(1.0, x.dtype), x),
    }
)


def apply(name: str, x: Scalar, y: Scalar | None, *, reverse: bool = False) -> Scalar:
    """Return ``x <op> y``, or ``y <op> x`` when reversed; unary operators take `x` in any order.

    Args:
        name: a key of `nki.isa.alu.ALU`.
        x: an expression.
        y: another of the same type; None, which stands for 0, for unary operators.
        reverse: exchange the operands.
    """
    other = _zero(x) if y is None else y
    if reverse and not ALU[name].unary:
        x, other = other, x
    assert x.dtype is other.dtype or x.dtype is not DType.F32, name
    return EXPRESSIONS[name](x, other)
