"""Elementwise operators: tables of names first, then those that are a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch._ops import OpOverload

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype, result_dtype
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.registry import Context, lowers, lowers_name

aten = torch.ops.aten
Formula = Callable[..., Node]


def finish(cx: Context, x: Node) -> Node:
    """The value as PyTorch returns it: rounded to the result's type, in its shape."""
    return b.broadcast_to(b.convert(x, cx.dtype), cx.shape)


def formula(cx: Context, function: Formula, *tensors: Value, dtype: DType | None = None) -> Node:
    """Apply a formula to values in the type that the result is computed in, and round once."""
    wide = compute_dtype(cx.dtype if dtype is None else dtype)
    return finish(cx, function(*e.together(wide, *tensors)))


def rounded_formula(cx: Context, function: Formula, *tensors: Value) -> Node:
    """Like `formula`, with numbers rounded to the result's type first, as most kernels do it."""
    return finish(cx, function(*e.rounded_together(cx.dtype, *tensors)))


# ---- one operand --------------------------------------------------------------------------------

# Computed in floating point, whatever comes in.
FLOAT_UNARY: dict[OpOverload, Op] = {
    aten.exp.default: Op.EXP,
    aten.exp2.default: Op.EXP2,
    aten.expm1.default: Op.EXPM1,
    aten.log.default: Op.LOG,
    aten.log2.default: Op.LOG2,
    aten.log10.default: Op.LOG10,
    aten.log1p.default: Op.LOG1P,
    aten.sqrt.default: Op.SQRT,
    aten.rsqrt.default: Op.RSQRT,
    aten.sin.default: Op.SIN,
    aten.cos.default: Op.COS,
    aten.tan.default: Op.TAN,
    aten.sinh.default: Op.SINH,
    aten.cosh.default: Op.COSH,
    aten.tanh.default: Op.TANH,
    aten.asin.default: Op.ASIN,
    aten.acos.default: Op.ACOS,
    aten.atan.default: Op.ATAN,
    aten.asinh.default: Op.ASINH,
    aten.acosh.default: Op.ACOSH,
    aten.atanh.default: Op.ATANH,
    aten.erf.default: Op.ERF,
    aten.erfc.default: Op.ERFC,
    aten.erfinv.default: Op.ERFINV,
    aten.lgamma.default: Op.LGAMMA,
    aten.digamma.default: Op.DIGAMMA,
    aten.sigmoid.default: Op.LOGISTIC,
}
# Exact: integers stay as they are where there is nothing to do.
ROUNDING: dict[OpOverload, Op] = {
    aten.ceil.default: Op.CEIL,
    aten.floor.default: Op.FLOOR,
    aten.round.default: Op.ROUND_EVEN,
    aten.trunc.default: Op.TRUNC,
}


def _float_unary(op: Op, cx: Context, x: Node) -> Node:
    return formula(cx, partial(b.unary, op), x)


def _rounding(op: Op, cx: Context, x: Node) -> Node:
    return formula(cx, partial(b.unary, op), x) if x.dtype.is_float else x


for _overload, _op in FLOAT_UNARY.items():
    lowers(_overload)(partial(_float_unary, _op))
for _overload, _op in ROUNDING.items():
    lowers(_overload)(partial(_rounding, _op))


@lowers(aten.abs.default)
def abs_(cx: Context, x: Node) -> Node:
    if x.dtype.is_unsigned or x.dtype is DType.PRED:
        return x
    return b.convert(b.abs_(b.convert(x, compute_dtype(x.dtype))), cx.dtype)


@lowers(aten.neg.default)
def neg(cx: Context, x: Node) -> Node:
    return formula(cx, b.negate, x)


@lowers(aten.sign.default, aten.sgn.default)
def sign(cx: Context, x: Node) -> Node:
    return x if x.dtype is DType.PRED else formula(cx, sign_of, x)


def sign_of(x: Node) -> Node:
    """-1, 0 or 1; of a complex number its direction. NaN has the sign 0, as in PyTorch."""
    if x.dtype.is_complex:
        size = b.abs_(x)
        unit = b.divide(x, b.complex_(size, e.like(size, 0)))
        return b.select(b.equal(size, e.like(size, 0)), e.like(x, 0), unit)
    if x.dtype.is_float:
        return b.select(b.greater(b.abs_(x), e.like(x, 0)), b.sign(x), e.like(x, 0))
    return b.sign(x)


@lowers(aten.reciprocal.default)
def reciprocal(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.divide(e.like(v, 1), v), x)


@lowers(aten.square.default)
def square(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.multiply(v, v), x)


@lowers(aten.relu.default)
def relu(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: at_least(v, 0), x)


@lowers(aten.bitwise_not.default)
def bitwise_not(_cx: Context, x: Node) -> Node:
    return b.not_(x)


@lowers(aten.logical_not.default)
def logical_not(_cx: Context, x: Node) -> Node:
    return b.not_(e.not_zero(x))


@lowers(aten.isnan.default)
def isnan(cx: Context, x: Node) -> Node:
    if not x.dtype.is_float and not x.dtype.is_complex:
        return e.number(value=False, dtype=DType.PRED, shape=cx.shape)
    return is_nan(x)


def is_nan(x: Node) -> Node:
    """Whether a float, or a part of a complex number, is NaN."""
    return b.or_(b.is_nan(b.real(x)), b.is_nan(b.imag(x))) if x.dtype.is_complex else b.is_nan(x)


@lowers(aten.isinf.default)
def isinf(cx: Context, x: Node) -> Node:
    if x.dtype.is_complex:
        return b.or_(is_infinite(b.real(x)), is_infinite(b.imag(x)))
    return (
        is_infinite(x)
        if x.dtype.is_float
        else e.number(value=False, dtype=DType.PRED, shape=cx.shape)
    )


def is_infinite(x: Node) -> Node:
    return b.not_(b.or_(b.is_finite(x), b.is_nan(x)))


@lowers(aten.signbit.default)
def signbit(cx: Context, x: Node) -> Node:
    if not x.dtype.is_float:
        if not x.dtype.is_signed:
            return e.number(value=False, dtype=DType.PRED, shape=cx.shape)
        return b.less(x, e.like(x, 0))
    wide = b.convert(x, compute_dtype(x.dtype))
    return b.less(b.copysign(e.like(wide, 1), wide), e.like(wide, 0))


@lowers(aten.frac.default)
def frac(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.subtract(v, b.trunc(v)), x)


@lowers(aten.round.decimals)
def round_decimals(cx: Context, x: Node, *, decimals: int = 0) -> Node:
    if not x.dtype.is_float:
        return x
    ten = 10.0 ** abs(decimals)

    def rounded(v: Node) -> Node:
        scale = e.like(v, ten)
        if decimals < 0:
            return b.multiply(b.round_even(b.divide(v, scale)), scale)
        return b.divide(b.round_even(b.multiply(v, scale)), scale)

    return formula(cx, rounded, x)


@lowers(aten.logit.default)
def logit(cx: Context, x: Node, eps: float | None = None) -> Node:
    def of(v: Node) -> Node:
        if eps is not None:
            low, high = e.like(v, eps), e.like(v, 1.0 - eps)
            v = b.select(b.less(v, low), low, b.select(b.greater(v, high), high, v))
        return b.log(b.divide(v, b.subtract(e.like(v, 1), v)))

    return formula(cx, of, x)


@lowers(aten.sinc.default, aten.special_sinc.default)
def sinc(cx: Context, x: Node) -> Node:
    def of(v: Node) -> Node:
        angle = b.multiply(v, e.like(v, math.pi))
        return b.select(b.equal(v, e.like(v, 0)), e.like(v, 1), b.divide(b.sin(angle), angle))

    return formula(cx, of, x)


@lowers(aten.nan_to_num.default)
def nan_to_num(
    cx: Context,
    x: Node,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Node:
    if not x.dtype.is_float:
        return x
    info = torch.finfo(cx.first.dtype)
    wide = b.convert(x, compute_dtype(x.dtype))
    above = e.like(wide, info.max if posinf is None else posinf)
    below = e.like(wide, info.min if neginf is None else neginf)
    infinite = b.select(b.greater(wide, e.like(wide, 0)), above, below)
    finite = b.select(b.is_finite(wide), wide, infinite)
    return finish(cx, b.select(b.is_nan(wide), e.like(wide, nan or 0.0), finite))


@lowers(aten.deg2rad.default)
def deg2rad(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.multiply(v, e.like(v, math.pi / 180)), x)


@lowers(aten.rad2deg.default)
def rad2deg(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.multiply(v, e.like(v, 180 / math.pi)), x)


# ---- two operands -------------------------------------------------------------------------------

# Computed in the common type (which is the result's).
ARITHMETIC: dict[OpOverload, Op] = {
    aten.mul.Tensor: Op.MULTIPLY,
    aten.mul.Scalar: Op.MULTIPLY,
    aten.div.Tensor: Op.DIVIDE,
    aten.div.Scalar: Op.DIVIDE,
    aten.maximum.default: Op.MAXIMUM,
    aten.minimum.default: Op.MINIMUM,
    aten.atan2.default: Op.ATAN2,
    aten.nextafter.default: Op.NEXTAFTER,
    aten.copysign.Tensor: Op.COPYSIGN,
    aten.copysign.Scalar: Op.COPYSIGN,
}
BITWISE: dict[OpOverload, Op] = {
    overload: op
    for name, op in (("and", Op.AND), ("or", Op.OR), ("xor", Op.XOR))
    for packet in (getattr(aten, f"bitwise_{name}"),)
    for overload in (packet.Tensor, packet.Scalar, packet.Scalar_Tensor)
}
LOGICAL: dict[OpOverload, Op] = {
    aten.logical_and.default: Op.AND,
    aten.logical_or.default: Op.OR,
    aten.logical_xor.default: Op.XOR,
}
COMPARISONS: dict[OpOverload, str] = {
    overload: name.upper()
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for packet in (getattr(aten, name),)
    for overload in (packet.Tensor, packet.Scalar)
}


_KEEPING = frozenset({Op.MULTIPLY, Op.DIVIDE})  # numbers keep their precision


def arithmetic(op: Op, cx: Context, x: Value, y: Value) -> Node:
    if cx.dtype is DType.PRED and op is Op.MULTIPLY:
        op = Op.AND
    if cx.dtype.is_float and op is Op.NEXTAFTER:  # steps of the type itself
        return finish(cx, b.nextafter(*e.together(cx.dtype, x, y)))
    apply = formula if op in _KEEPING else rounded_formula
    return apply(cx, partial(b.binary, op), x, y)


def _bitwise(op: Op, cx: Context, x: Value, y: Value) -> Node:
    return finish(cx, b.binary(op, *e.together(cx.dtype, x, y)))


def _logical(op: Op, cx: Context, x: Node, y: Node) -> Node:
    return finish(cx, b.binary(op, *e.together(DType.PRED, e.not_zero(x), e.not_zero(y))))


def _comparison(direction: str, cx: Context, x: Value, y: Value) -> Node:
    # A number wraps around in the tensor's type, as it does in eager mode.
    left, right = e.rounded_together(result_dtype(x, y), x, y)
    return finish(cx, b.compare(left, right, direction))


for _overload, _op in ARITHMETIC.items():
    lowers(_overload)(partial(arithmetic, _op))
for _overload, _op in BITWISE.items():
    lowers(_overload)(partial(_bitwise, _op))
for _overload, _op in LOGICAL.items():
    lowers(_overload)(partial(_logical, _op))
for _overload, _direction in COMPARISONS.items():
    lowers(_overload)(partial(_comparison, _direction))


def _sum(op: Op, cx: Context, x: Value, y: Value, alpha: Scalar) -> Node:
    if cx.dtype is DType.PRED:
        both = e.together(DType.PRED, x, y) if alpha else e.together(DType.PRED, x, x)
        return finish(cx, b.or_(*both))
    wide = compute_dtype(cx.dtype)
    if wide.is_complex:
        # One formula for both, as in eager mode: what a product leaves of special parts depends on
        # the sign of its factor.
        factor = alpha if op is Op.ADD else -alpha
        return finish(cx, b.add(*e.together(wide, x, e.times(e.value(y, wide), factor))))
    if isinstance(y, Node):
        y = e.scaled(b.convert(y, wide), alpha)
    elif not e.is_one(alpha):
        y = y * alpha
    values = (v if isinstance(v, Node) else e.number(v, cx.dtype) for v in (x, y))
    return finish(cx, b.binary(op, *e.together(wide, *values)))


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.ADD, cx, x, y, alpha_ if e.is_one(alpha) else alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.SUBTRACT, cx, x, y, alpha_ if e.is_one(alpha) else alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.SUBTRACT, cx, y, x, alpha_ if e.is_one(alpha) else alpha)


# ---- selection, clamping, fused multiply-add ----------------------------------------------------


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(cx: Context, condition: Node, x: Value, y: Value) -> Node:
    pred = b.broadcast_to(e.not_zero(condition), cx.shape)
    picks = [b.broadcast_to(e.value(v, cx.dtype), cx.shape) for v in (x, y)]
    return b.select(pred, picks[0], picks[1])


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(cx: Context, x: Node, mask: Node, fill: Value) -> Node:
    picks = [b.broadcast_to(e.value(v, cx.dtype), cx.shape) for v in (fill, x)]
    return b.select(b.broadcast_to(e.not_zero(mask), cx.shape), picks[0], picks[1])


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(cx: Context, x: Node, low: Value | None = None, high: Value | None = None) -> Node:
    wide = compute_dtype(cx.dtype)
    v = b.broadcast_to(b.convert(x, wide), cx.shape)
    # In this order, as PyTorch: if low > high the result is high. NaN stays.
    if low is not None:
        v = at_least(v, low)
    if high is not None:
        v = at_most(v, high)
    return finish(cx, v)


def at_least(v: Node, low: Value) -> Node:
    """The larger one, and the value itself, a zero of its own sign, where both are equal."""
    bound = b.broadcast_to(e.value(low, v.dtype), v.shape)
    if not v.dtype.is_float or isinstance(low, Node) or low != low:  # NaN wins  # noqa: PLR0124
        return b.maximum(v, bound)
    return b.select(b.less(v, bound), bound, v)


def at_most(v: Node, high: Value) -> Node:
    """The smaller one, as for `at_least`."""
    bound = b.broadcast_to(e.value(high, v.dtype), v.shape)
    if not v.dtype.is_float or isinstance(high, Node) or high != high:  # noqa: PLR0124
        return b.minimum(v, bound)
    return b.select(b.greater(v, bound), bound, v)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(cx: Context, x: Node, low: Value) -> Node:
    return clamp(cx, x, low)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(cx: Context, x: Node, high: Value) -> Node:
    return clamp(cx, x, None, high)


@lowers(aten.addcmul.default)
def addcmul(cx: Context, x: Node, y: Node, z: Node, *, value: Scalar = 1) -> Node:
    return formula(cx, lambda x, y, z: b.add(x, b.multiply(e.times(y, value), z)), x, y, z)


@lowers(aten.addcdiv.default)
def addcdiv(cx: Context, x: Node, y: Node, z: Node, *, value: Scalar = 1) -> Node:
    return formula(cx, lambda x, y, z: b.add(x, b.divide(e.times(y, value), z)), x, y, z)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(cx: Context, start: Node, end: Node, weight: Value) -> Node:
    def of(x: Node, y: Node, w: Node) -> Node:
        way = b.subtract(y, x)
        near = b.add(x, b.multiply(w, way))
        far = b.subtract(y, b.multiply(way, b.subtract(e.like(w, 1), w)))
        size = b.abs_(w)
        return b.select(b.less(size, e.like(size, 0.5)), near, far)

    if not isinstance(weight, Node) and not isinstance(weight, complex):
        return formula(cx, partial(_lerp_by, weight), start, end)
    return formula(cx, of, start, end, weight)


def _lerp_by(weight: float, x: Node, y: Node) -> Node:
    way = b.subtract(y, x)
    if abs(weight) < 0.5:
        return b.add(x, e.scaled(way, weight))
    return b.subtract(y, e.scaled(way, 1 - weight))


@lowers_name("prims::fma")  # defined by a module that Dynamo loads when it wants one
def fma(cx: Context, x: Node, y: Node, z: Node) -> Node:
    """X * y + z; that the product is not rounded is an allowance, not a promise."""
    return formula(cx, lambda x, y, z: b.add(b.multiply(x, y), z), x, y, z)
