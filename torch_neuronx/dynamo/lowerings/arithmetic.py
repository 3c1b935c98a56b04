"""Division and remainders, logarithms of sums, and integer arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import demand
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.locations import operator_name
from torch_neuronx.dynamo.lowerings.pointwise import (
    Formula,
    arithmetic,
    finish,
    formula,
    is_infinite,
    is_nan,
    rounded_formula,
)
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _divided(
    cx: Context,
    function: Formula,
    x: Value,
    y: Value,
    *,
    apply: Callable[..., Node] = formula,
) -> Node:
    """A formula that divides, which integers cannot be by 0, unless there are none."""
    if not compute_dtype(cx.dtype).is_float and 0 not in cx.shape:
        divisor = y if isinstance(y, Node) else e.number(y, cx.dtype)
        demand(cx, e.not_zero(divisor), f"ZeroDivisionError ({operator_name(cx.fx.target)})")
    return apply(cx, function, x, y)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: Context, x: Value, y: Value, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return arithmetic(Op.DIVIDE, cx, x, y)
    if rounding_mode == "trunc":
        return _divided(cx, _divide_trunc, x, y)
    return _divided(cx, floor_divided, x, y)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(cx: Context, x: Value, y: Value) -> Node:
    return _divided(cx, floor_divided, x, y)


def _divide_trunc(x: Node, y: Node) -> Node:
    quotient = b.divide(x, y)
    return b.trunc(quotient) if quotient.dtype.is_float else quotient


def floor_divided(x: Node, y: Node) -> Node:
    """X // y, rounded down, exactly as PyTorch does it (by way of the remainder)."""
    if x.dtype.is_unsigned:
        return b.divide(x, y)
    zero = e.like(x, 0)
    left = b.remainder(x, y)
    apart = b.not_equal(b.less(y, zero), b.less(left, zero))
    fix = b.and_(b.not_equal(left, zero), apart)
    if not x.dtype.is_float:
        quotient = b.divide(x, y)
        return b.select(fix, b.subtract(quotient, e.like(x, 1)), quotient)
    quotient = b.divide(b.subtract(x, left), y)
    quotient = b.select(fix, b.subtract(quotient, e.like(x, 1)), quotient)
    floor = b.floor(quotient)
    near = b.greater(b.subtract(quotient, floor), e.like(x, 0.5))
    floor = b.select(near, b.add(floor, e.like(x, 1)), floor)
    exact = b.divide(x, y)
    floor = b.select(b.equal(quotient, zero), b.copysign(zero, exact), floor)
    return b.select(b.equal(y, zero), exact, floor)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def remainder(cx: Context, x: Value, y: Value) -> Node:
    return _divided(cx, modulo, x, y, apply=rounded_formula)


def modulo(x: Node, y: Node) -> Node:
    """The remainder with the sign of the divisor."""
    left = b.remainder(x, y)
    if x.dtype.is_unsigned:
        return left
    zero = e.like(x, 0)
    apart = b.not_equal(b.less(y, zero), b.less(left, zero))
    fix = b.and_(b.not_equal(left, zero), apart)
    return b.select(fix, b.add(left, y), left)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(cx: Context, x: Value, y: Value) -> Node:
    return _divided(cx, b.remainder, x, y, apply=rounded_formula)


@lowers(aten.fmax.default)
def fmax(cx: Context, x: Node, y: Node) -> Node:
    return formula(cx, partial(_ignoring_nan, b.maximum), x, y)


@lowers(aten.fmin.default)
def fmin(cx: Context, x: Node, y: Node) -> Node:
    return formula(cx, partial(_ignoring_nan, b.minimum), x, y)


def _ignoring_nan(function: Formula, x: Node, y: Node) -> Node:
    result = function(x, y)
    if not x.dtype.is_float:
        return result
    return b.select(b.is_nan(x), y, b.select(b.is_nan(y), x, result))


@lowers(aten.hypot.default)
def hypot(cx: Context, x: Node, y: Node) -> Node:
    return formula(cx, _hypot, x, y)


def _hypot(x: Node, y: Node) -> Node:
    x, y = b.abs_(x), b.abs_(y)
    large, small = b.maximum(x, y), b.minimum(x, y)
    ratio = b.divide(small, large)
    one = e.like(x, 1)
    size = b.multiply(large, b.sqrt(b.add(one, b.multiply(ratio, ratio))))
    size = b.select(b.equal(large, e.like(x, 0)), large, size)
    infinite = b.or_(is_infinite(x), is_infinite(y))
    return b.select(infinite, e.like(x, math.inf), size)


@lowers(aten.logaddexp.default)
def logaddexp(cx: Context, x: Node, y: Node) -> Node:
    def of(x: Node, y: Node) -> Node:
        if x.dtype.is_complex:
            return _complex_logaddexp(x, y)
        large = b.maximum(x, y)
        tail = b.log1p(b.exp(b.negate(b.abs_(b.subtract(x, y)))))
        return b.select(b.and_(b.equal(x, y), is_infinite(x)), x, b.add(large, tail))

    return formula(cx, of, x, y)


def _complex_logaddexp(x: Node, y: Node) -> Node:
    """The larger plus log(1 + exp(smaller - larger)), by real parts."""
    first = b.greater_equal(b.real(x), b.real(y))
    large, small = b.select(first, x, y), b.select(first, y, x)
    total = b.add(large, b.log(b.add(e.like(x, 1), b.exp(b.subtract(small, large)))))
    # A NaN in one part of an operand makes both parts of the result NaN.
    nan = b.or_(is_nan(x), is_nan(y))
    return b.select(nan, e.like(x, complex(math.nan, math.nan)), total)


@lowers(aten.logaddexp2.default)
def logaddexp2(cx: Context, x: Node, y: Node) -> Node:
    def of(x: Node, y: Node) -> Node:
        large = b.maximum(x, y)
        tail = b.log1p(b.exp2(b.negate(b.abs_(b.subtract(x, y)))))
        tail = b.multiply(tail, e.like(x, 1 / math.log(2)))
        return b.select(b.and_(b.equal(x, y), is_infinite(x)), x, b.add(large, tail))

    return formula(cx, of, x, y)


@lowers(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(cx: Context, x: Value, y: Value) -> Node:
    return formula(cx, partial(_xlog, b.log), x, y)


@lowers(
    aten.special_xlog1py.default,
    aten.special_xlog1py.self_scalar,
    aten.special_xlog1py.other_scalar,
)
def xlog1py(cx: Context, x: Value, y: Value) -> Node:
    return formula(cx, partial(_xlog, b.log1p), x, y)


def _xlog(log: Formula, x: Node, y: Node) -> Node:
    product = b.multiply(x, log(y))
    result = b.select(b.equal(x, e.like(x, 0)), e.like(x, 0), product)
    return b.select(b.is_nan(y), y, result)


@lowers(aten.heaviside.default)
def heaviside(cx: Context, x: Node, values: Node) -> Node:
    def of(x: Node, v: Node) -> Node:
        zero = e.like(x, 0)
        step = b.select(b.greater(x, zero), e.like(x, 1), zero)  # of NaN 0
        return b.select(b.equal(x, zero), v, step)

    if cx.dtype is DType.PRED:
        x, values = e.together(DType.PRED, x, values)
        return finish(cx, b.or_(x, values))
    return formula(cx, of, x, values)


@lowers(aten.gcd.default)
def gcd(cx: Context, x: Node, y: Node) -> Node:
    # Lame: no pair of n-bit numbers takes more than 1.4405 n + 1 divisions.
    x, y = e.together(cx.dtype, x, y)
    x, y = (x, y) if x.dtype.is_unsigned else (b.abs_(x), b.abs_(y))
    return finish(cx, _gcd(x, y))


def _gcd(x: Node, y: Node) -> Node:
    """Euclid's steps as a loop that ends when all remainders are 0."""
    types = (x.type, y.type)
    params = [parameter(i, t) for i, t in enumerate(types)]
    busy = b.reduce(e.not_zero(params[1]), "or")
    cond = b.graph("gcd_cond", params, [busy])
    large, small = params
    zero = e.like(small, 0)
    safe = b.select(b.equal(small, zero), e.like(small, 1), small)
    left = b.select(b.equal(small, zero), zero, b.remainder(large, safe))
    body = b.graph("gcd_body", params, [b.select(b.equal(small, zero), large, small), left])
    return b.get(b.while_(cond, body, (x, y)), 0)


@lowers(aten.lcm.default)
def lcm(cx: Context, x: Node, y: Node) -> Node:
    x, y = e.together(cx.dtype, x, y)
    divisor = _gcd(b.abs_(x), b.abs_(y)) if not x.dtype.is_unsigned else _gcd(x, y)
    zero = e.like(x, 0)
    safe = b.select(b.equal(divisor, zero), e.like(x, 1), divisor)
    product = b.multiply(b.divide(x, safe), y)
    product = product if x.dtype.is_unsigned else b.abs_(product)
    return finish(cx, b.select(b.equal(divisor, zero), zero, product))


def _shift(op: Op, cx: Context, x: Value, y: Value) -> Node:
    dtype = cx.dtype
    x, y = e.together(dtype, x, y)
    if op is Op.SHIFT_RIGHT_ARITHMETIC and dtype.is_unsigned:
        op = Op.SHIFT_RIGHT_LOGICAL
    return finish(cx, b.binary(op, x, y))


for _name, _op in (("left", Op.SHIFT_LEFT), ("right", Op.SHIFT_RIGHT_ARITHMETIC)):
    _packet = getattr(aten, f"bitwise_{_name}_shift")
    lowers(_packet.Tensor, _packet.Tensor_Scalar, _packet.Scalar_Tensor)(partial(_shift, _op))
for _overloads, _op in (
    ((aten.__lshift__.Tensor, aten.__lshift__.Scalar), Op.SHIFT_LEFT),
    ((aten.__rshift__.Tensor, aten.__rshift__.Scalar), Op.SHIFT_RIGHT_ARITHMETIC),
):
    lowers(*_overloads)(partial(_shift, _op))
