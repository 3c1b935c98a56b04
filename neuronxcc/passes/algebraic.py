"""Elementwise identities that hold in all bits: NaN, infinities, signed zeros and denormals too.

`x * 0`, `x - x` and `x + 0.0` are not among them for floats (NaN, infinities, -0.0).
"""

from __future__ import annotations

import math

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import arithmetic, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.passes.match import (
    again,
    fill,
    is_number,
    lossless,
    number,
    power_of_two,
    splat,
    whole,
)
from neuronxcc.passes.rules import Rule, rule

_ROUNDINGS = (Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC)
_FLIPPED = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


@rule("constant to the right", *Group.COMMUTATIVE, Op.COMPARE)
def constant_right(node: Node) -> Node | None:
    """So that the other rules look there only. Comparisons turn around."""
    left, right = node.srcs
    if splat(left) is None or splat(right) is not None:
        return None
    if node.op is Op.COMPARE:
        return build.compare(right, left, _MIRRORED[node["direction"]])
    return again(node, right, left)


@rule("x + -0.0, x - 0.0, integer x + 0", Op.ADD, Op.SUBTRACT)
def add_nothing(node: Node) -> Node | None:
    """The zero that changes nothing, not even the sign of a zero."""
    x, y = node.srcs
    zero = 0.0 if node.op is Op.SUBTRACT or whole(node.dtype) else -0.0
    return x if is_number(y, zero) else None


@rule("x * 1, x / 1", Op.MULTIPLY, Op.DIVIDE)
def times_one(node: Node) -> Node | None:
    """Multiply or divide by 1."""
    return node.srcs[0] if is_number(node.srcs[1], 1) else None


@rule("x * -1, x / -1, -0.0 - x", Op.MULTIPLY, Op.DIVIDE, Op.SUBTRACT)
def negation(node: Node) -> Node | None:
    """Replace operators that only change the sign by a negation."""
    x, y = node.srcs
    if node.op is Op.SUBTRACT:
        return build.negate(y) if is_number(x, 0 if whole(node.dtype) else -0.0) else None
    return build.negate(x) if is_number(y, -1) else None


@rule("integer x * 0", Op.MULTIPLY, Op.AND)
def times_zero(node: Node) -> Node | None:
    """For floats it is NaN times 0 that forbids this."""
    return node.srcs[1] if whole(node.dtype) and is_number(node.srcs[1], 0) else None


@rule("x / 2**k", Op.DIVIDE)
def divide_by_power(node: Node) -> Node | None:
    """To a product with the reciprocal, where that is exact: both then round the same number."""
    x, y = node.srcs
    value = number(y)
    if not node.dtype.is_float or not isinstance(value, float) or not power_of_two(value):
        return None
    reciprocal = np.asarray(1 / value)
    with np.errstate(over="ignore"):  # infinity is not the reciprocal
        rounded = cast(reciprocal, node.dtype)
    if arithmetic(rounded).item() != 1 / value:
        return None  # too large or a denormal that is lost
    return build.multiply(x, fill(rounded, node.type))


@rule("x ** 0, x ** 1, x ** 2", Op.POWER)
def small_power(node: Node) -> Node | None:
    """Exact where the reference of `power` rounds once: up to 32 bits."""
    x, y = node.srcs
    exponent = number(y)
    if node.dtype.is_complex or node.dtype is DType.F64:
        return None
    if exponent == 0:
        return fill(cast(np.asarray(1.0), node.dtype), node.type)
    if exponent == 1:
        return x
    return build.multiply(x, x) if exponent == 2 else None


@rule("two constants of integer sums and products", Op.ADD, Op.MULTIPLY, Op.AND, Op.OR, Op.XOR)
def join_constants(node: Node) -> Node | None:
    """(x + a) + b; modulo 2**n the order does not matter."""
    inner, outer_constant = node.srcs
    if not whole(node.dtype) or inner.op is not node.op or splat(outer_constant) is None:
        return None
    x, inner_constant = inner.srcs
    if splat(inner_constant) is None:
        return None
    return again(node, x, again(node, inner_constant, outer_constant))


@rule("x op x", Op.SUBTRACT, Op.XOR, Op.AND, Op.OR, Op.MAXIMUM, Op.MINIMUM)
def with_itself(node: Node) -> Node | None:
    """Nothing for integers; the extremes of x and x are x, NaN too."""
    x, y = node.srcs
    if x is not y:
        return None
    if node.op in (Op.SUBTRACT, Op.XOR):
        return fill(0, node.type) if whole(node.dtype) else None
    return x


@rule("bitwise with no bits or all bits", Op.AND, Op.OR, Op.XOR)
def bitwise_constant(node: Node) -> Node | None:
    """Such as x & ~0, x | 0, x ^ 0, x | ~0, x ^ ~0."""
    x, y = node.srcs
    value = splat(y)
    if value is None:
        return None
    none, every = value == 0, np.invert(value) == 0
    if (node.op is Op.AND and every) or (node.op is not Op.AND and none):
        return x
    if node.op is Op.OR and every:
        return y
    return build.not_(x) if node.op is Op.XOR and every else None


@rule("sum with a negation", Op.ADD, Op.SUBTRACT)
def add_negation(node: Node) -> Node | None:
    """Such as x + -y, -x + y, x - -y."""
    x, y = node.srcs
    if y.op is Op.NEGATE:
        return (build.subtract if node.op is Op.ADD else build.add)(x, y.srcs[0])
    if node.op is Op.ADD and x.op is Op.NEGATE:
        return build.subtract(y, x.srcs[0])
    return None


@rule("product of negations", Op.MULTIPLY, Op.DIVIDE)
def multiply_negations(node: Node) -> Node | None:
    """-x * -y. Quotients of floats only: integers overflow at the least, complex zeros turn."""
    x, y = node.srcs
    if x.op is not Op.NEGATE or y.op is not Op.NEGATE:
        return None
    if node.op is Op.DIVIDE and not node.dtype.is_float:
        return None
    return again(node, x.srcs[0], y.srcs[0])


@rule("done and undone", Op.NEGATE, Op.NOT, Op.CONJ)
def twice(node: Node) -> Node | None:
    """-(-x), ~~x."""
    (x,) = node.srcs
    return x.srcs[0] if x.op is node.op else None


@rule("done again", Op.ABS, Op.SIGN, *_ROUNDINGS)
def once_is_enough(node: Node) -> Node | None:
    """|x| of |x|, |-x|; rounding what is whole; sign of sign."""
    (x,) = node.srcs
    if node.dtype.is_complex or x.dtype.is_complex:
        return None
    if node.op is Op.ABS and node.dtype.is_unsigned:
        return x
    if node.op in _ROUNDINGS and x.op in _ROUNDINGS:
        return x
    if node.op is Op.ABS and x.op is Op.NEGATE:
        return build.abs_(x.srcs[0])
    return x if x.op is node.op else None


@rule("comparison of integers with themselves", Op.COMPARE)
def compare_itself(node: Node) -> Node | None:
    """NaN differs from itself, so floats are left alone."""
    x, y = node.srcs
    if x is not y or not whole(x.dtype):
        return None
    return fill(node["direction"] in ("EQ", "LE", "GE"), node.type)


@rule("pred compared with a constant", Op.COMPARE)
def compare_pred(node: Node) -> Node | None:
    """Such as p != false; also of a pred that was converted to a number."""
    x, y = node.srcs
    value, direction = number(y), node["direction"]
    if value not in (0, 1) or direction not in ("EQ", "NE"):
        return None
    pred = x.srcs[0] if x.op is Op.CONVERT and x.dtype is not DType.F8E8M0 else x
    if pred.dtype is not DType.PRED:
        return None
    return pred if (value == 1) == (direction == "EQ") else build.not_(pred)


@rule("not of a comparison", Op.NOT)
def not_compare(node: Node) -> Node | None:
    """The opposite comparison; of floats only EQ and NE, since all others are false for NaN."""
    (x,) = node.srcs
    if x.op is not Op.COMPARE:
        return None
    if not whole(x.srcs[0].dtype) and x["direction"] not in ("EQ", "NE"):
        return None
    return build.compare(x.srcs[0], x.srcs[1], _FLIPPED[x["direction"]])


@rule("select without a choice", Op.SELECT)
def select_known(node: Node) -> Node | None:
    """A constant predicate, or equal alternatives."""
    pred, on_true, on_false = node.srcs
    value = splat(pred)
    if value is not None:
        return on_true if value else on_false
    return on_true if on_true is on_false else None


@rule("select by a negation", Op.SELECT)
def select_not(node: Node) -> Node | None:
    """Exchange the alternatives."""
    pred, on_true, on_false = node.srcs
    return build.select(pred.srcs[0], on_false, on_true) if pred.op is Op.NOT else None


@rule("select within a select", Op.SELECT)
def select_again(node: Node) -> Node | None:
    """The inner select of the same predicate is decided."""
    pred, on_true, on_false = node.srcs
    if on_true.op is Op.SELECT and on_true.srcs[0] is pred:
        return build.select(pred, on_true.srcs[1], on_false)
    if on_false.op is Op.SELECT and on_false.srcs[0] is pred:
        return build.select(pred, on_true, on_false.srcs[2])
    return None


@rule("select true or false", Op.SELECT)
def select_pred(node: Node) -> Node | None:
    """Choosing between true and false is the predicate."""
    pred, on_true, on_false = node.srcs
    if node.dtype is not DType.PRED or splat(on_true) is None or splat(on_false) is None:
        return None
    if is_number(on_true, 1) and is_number(on_false, 0):
        return pred
    return build.not_(pred) if is_number(on_true, 0) and is_number(on_false, 1) else None


@rule("clamp with an open end", Op.CLAMP)
def clamp_open(node: Node) -> Node | None:
    """An infinite bound is none."""
    low, x, high = node.srcs
    if is_number(low, -math.inf):
        return build.minimum(x, high)
    return build.maximum(x, low) if is_number(high, math.inf) else None


@rule("extreme that decides nothing", Op.MAXIMUM, Op.MINIMUM)
def extreme_constant(node: Node) -> Node | None:
    """max(x, -inf), min(x, inf), and the extremes of integers."""
    x, y = node.srcs
    low, high = -math.inf, math.inf
    if node.dtype.is_integer:
        info = np.iinfo(node.dtype.numpy)
        low, high = int(info.min), int(info.max)
    neutral = low if node.op is Op.MAXIMUM else high
    return x if is_number(y, neutral) else None


@rule("convert to the same type", Op.CONVERT, Op.BITCAST_CONVERT)
def convert_nothing(node: Node) -> Node | None:
    """Nothing to do."""
    (x,) = node.srcs
    return x if x.dtype is node.dtype else None


@rule("convert by way of a wider type", Op.CONVERT)
def convert_twice(node: Node) -> Node | None:
    """The first conversion loses nothing, so the second alone gives the same.

    Not from an integer through a float to an integer: there the second saturates, alone it wraps.
    """
    middle = node.srcs[0]
    if middle.op is not Op.CONVERT:
        return None
    source = middle.srcs[0]
    first, through, last = source.dtype, middle.dtype, node.dtype
    if not lossless(first, through) or DType.F8E8M0 in (first, through, last) or last.is_complex:
        return None
    if first.is_integer and through.is_float and last.is_integer and not lossless(first, last):
        return None
    return build.convert(source, last)


@rule("bits as another type twice", Op.BITCAST_CONVERT)
def bitcast_twice(node: Node) -> Node | None:
    """Bits are bits."""
    (x,) = node.srcs
    return build.bitcast_convert(x.srcs[0], node.dtype) if x.op is Op.BITCAST_CONVERT else None


_BITS = {DType.F16: (5, 10), DType.BF16: (8, 7), DType.F32: (8, 23), DType.F64: (11, 52)}


@rule("rounding that changes nothing", Op.REDUCE_PRECISION)
def round_nothing(node: Node) -> Node | None:
    """To the format that it has, or that it was converted from, or rounded to before."""
    (x,) = node.srcs
    wanted = (node["exponent_bits"], node["mantissa_bits"])
    if x.op is Op.REDUCE_PRECISION and x.attrs == node.attrs:
        return x
    # A narrower exponent flushes denormals, so the exponent must be all there.
    exponent, mantissa = _BITS[node.dtype]
    if wanted[0] >= exponent and wanted[1] >= mantissa:
        return x
    if x.op is Op.CONVERT and wanted[0] >= exponent and lossless(x.srcs[0].dtype, node.dtype):
        held = _BITS.get(x.srcs[0].dtype)
        return x if held is not None and held[1] <= wanted[1] else None
    return None


RULES: tuple[Rule, ...] = (
    constant_right,
    add_nothing,
    times_one,
    negation,
    times_zero,
    divide_by_power,
    small_power,
    join_constants,
    with_itself,
    bitwise_constant,
    add_negation,
    multiply_negations,
    twice,
    once_is_enough,
    compare_itself,
    compare_pred,
    not_compare,
    select_known,
    select_not,
    select_again,
    select_pred,
    clamp_open,
    extreme_constant,
    convert_nothing,
    convert_twice,
    bitcast_twice,
    round_nothing,
)
