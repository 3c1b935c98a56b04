"""Elementwise operators: tables of names first, then those that are a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

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


def formula(
    cx: Context, function: Formula, *tensors: Value, dtype: DType | None = None
) -> Node:
    """Apply a formula to values in the type that the result is computed in, and round once."""
    wide = compute_dtype(cx.dtype if dtype is None else dtype)
    return finish(cx, function(*e.together(wide, *tensors)))


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
        return b.select(b.is_nan(x), e.like(x, 0), b.sign(x))
    return b.sign(x)


@lowers(aten.reciprocal.default)
def reciprocal(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.divide(e.like(v, 1), v), x)


@lowers(aten.square.default)
def square(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.multiply(v, v), x)


@lowers(aten.relu.default)
def relu(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.maximum(v, e.like(v, 0)), x)


@lowers(aten.bitwise_not.default)
def bitwise_not(_cx: Context, x: Node) -> Node:
    return b.not_(x)


@lowers(aten.logical_not.default)
def logical_not(_cx: Context, x: Node) -> Node:
    return b.not_(e.not_zero(x))


@lowers(aten.isnan.default)
def isnan(cx: Context, x: Node) -> Node:
    if x.dtype.is_complex:
        return b.or_(b.is_nan(b.real(x)), b.is_nan(b.imag(x)))
    return b.is_nan(x) if x.dtype.is_float else e.number(value=False, dtype=DType.PRED, shape=cx.shape)


@lowers(aten.isinf.default)
def isinf(cx: Context, x: Node) -> Node:
    if x.dtype.is_complex:
        return b.or_(_isinf(b.real(x)), _isinf(b.imag(x)))
    return _isinf(x) if x.dtype.is_float else e.number(value=False, dtype=DType.PRED, shape=cx.shape)


def _isinf(x: Node) -> Node:
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

# Computed in the common type (which is the result's); numbers keep their precision.
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


def _arithmetic(op: Op, cx: Context, x: Value, y: Value) -> Node:
    if cx.dtype is DType.PRED and op is Op.MULTIPLY:
        op = Op.AND
    if cx.dtype.is_float and op is Op.NEXTAFTER:  # steps of the type itself
        return finish(cx, b.nextafter(*e.together(cx.dtype, x, y)))
    return formula(cx, partial(b.binary, op), x, y)


def _bitwise(op: Op, cx: Context, x: Value, y: Value) -> Node:
    return finish(cx, b.binary(op, *e.together(cx.dtype, x, y)))


def _logical(op: Op, cx: Context, x: Node, y: Node) -> Node:
    return finish(cx, b.binary(op, *e.together(DType.PRED, e.not_zero(x), e.not_zero(y))))


def _comparison(direction: str, cx: Context, x: Value, y: Value) -> Node:
    return finish(cx, b.compare(*_comparable(x, y), direction))


def _comparable(x: Value, y: Value) -> list[Node]:
    """Two values in their common type; a number outside its range must not wrap around."""
    dtype = result_dtype(x, y)
    if dtype.is_integer and not (isinstance(x, Node) and isinstance(y, Node)):
        plain = y if isinstance(x, Node) else x
        if not isinstance(plain, Node | complex) and e.number(plain, dtype)["literal"].array != plain:
            dtype = DType.F64
    return e.rounded_together(dtype, x, y)


for _overload, _op in ARITHMETIC.items():
    lowers(_overload)(partial(_arithmetic, _op))
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
    if isinstance(y, Node):
        y = e.scaled(b.convert(y, wide), alpha)
    elif not e.is_one(alpha):
        y = y * alpha
    return finish(cx, b.binary(op, *e.together(wide, x, y)))


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.ADD, cx, x, y, alpha_ if e.is_one(alpha) else alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.SUBTRACT, cx, x, y, alpha_ if e.is_one(alpha) else alpha)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(cx: Context, x: Value, y: Value, alpha_: Scalar = 1, *, alpha: Scalar = 1) -> Node:
    return _sum(Op.SUBTRACT, cx, y, x, alpha_ if e.is_one(alpha) else alpha)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: Context, x: Value, y: Value, *, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return _arithmetic(Op.DIVIDE, cx, x, y)
    if rounding_mode == "trunc":
        return formula(cx, _divide_trunc, x, y)
    return formula(cx, floor_divided, x, y)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(cx: Context, x: Value, y: Value) -> Node:
    return formula(cx, floor_divided, x, y)


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
    return formula(cx, modulo, x, y)


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
    return formula(cx, b.remainder, x, y)


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
    infinite = b.or_(_isinf(x), _isinf(y))
    return b.select(infinite, e.like(x, math.inf), size)


@lowers(aten.logaddexp.default)
def logaddexp(cx: Context, x: Node, y: Node) -> Node:
    def of(x: Node, y: Node) -> Node:
        if x.dtype.is_complex:
            return b.log(b.add(b.exp(x), b.exp(y)))
        large = b.maximum(x, y)
        tail = b.log1p(b.exp(b.negate(b.abs_(b.subtract(x, y)))))
        return b.select(b.and_(b.equal(x, y), _isinf(x)), x, b.add(large, tail))

    return formula(cx, of, x, y)


@lowers(aten.logaddexp2.default)
def logaddexp2(cx: Context, x: Node, y: Node) -> Node:
    def of(x: Node, y: Node) -> Node:
        large = b.maximum(x, y)
        tail = b.log1p(b.exp2(b.negate(b.abs_(b.subtract(x, y)))))
        tail = b.multiply(tail, e.like(x, 1 / math.log(2)))
        return b.select(b.and_(b.equal(x, y), _isinf(x)), x, b.add(large, tail))

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
        step = b.select(b.less(x, zero), zero, e.like(x, 1))
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
    params = [_param(i, t) for i, t in enumerate(types)]
    busy = b.reduce(e.not_zero(params[1]), "or")
    cond = b.graph("gcd_cond", params, [busy])
    large, small = params
    zero = e.like(small, 0)
    safe = b.select(b.equal(small, zero), e.like(small, 1), small)
    left = b.select(b.equal(small, zero), zero, b.remainder(large, safe))
    body = b.graph(
        "gcd_body", params, [b.select(b.equal(small, zero), large, small), left]
    )
    return b.get(b.while_(cond, body, (x, y)), 0)


def _param(index: int, type_: Any) -> Node:
    from neuronxcc.ir.graph import parameter  # noqa: PLC0415

    return parameter(index, type_)


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


# ---- powers -------------------------------------------------------------------------------------


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(cx: Context, x: Value, y: Value) -> Node:
    if not isinstance(y, Node) and not isinstance(y, complex):
        simple = _simple_power(cx, x, y)
        if simple is not None:
            return simple
    if cx.dtype is DType.PRED:
        x, y = e.together(DType.PRED, x, y)
        return finish(cx, b.or_(x, b.not_(y)))
    if cx.dtype.is_integer:
        return formula(cx, _integer_power, x, y)
    return formula(cx, b.power, x, y)


def _simple_power(cx: Context, x: Value, exponent: float) -> Node | None:
    """The exponents that PyTorch's kernel computes without a power function."""
    if cx.dtype is DType.PRED or isinstance(x, bool | int | float | complex):
        return None
    wide = compute_dtype(cx.dtype)
    v = b.convert(x, wide)
    if exponent == 0:
        return e.number(1, cx.dtype, cx.shape)
    if exponent == 1:
        return finish(cx, v)
    if exponent == 2:
        return finish(cx, b.multiply(v, v))
    if exponent == 3:
        return finish(cx, b.multiply(b.multiply(v, v), v))
    if not wide.is_float:
        return None
    if exponent == 0.5:
        return finish(cx, b.sqrt(v))
    one = e.like(v, 1)
    if exponent == -0.5:
        return finish(cx, b.rsqrt(v))
    if exponent == -1:
        return finish(cx, b.divide(one, v))
    if exponent == -2:
        return finish(cx, b.divide(one, b.multiply(v, v)))
    return None


def _integer_power(x: Node, y: Node) -> Node:
    """Integers: a negative exponent gives 0 except for bases 1 and -1."""
    if x.dtype.is_unsigned:
        return b.power(x, y)
    zero, one = e.like(x, 0), e.like(x, 1)
    negative = b.less(y, zero)
    positive = b.power(x, b.select(negative, zero, y))
    odd = b.equal(b.and_(y, one), one)
    minus = b.select(odd, e.like(x, -1), one)
    inverse = b.select(b.equal(x, one), one, b.select(b.equal(x, e.like(x, -1)), minus, zero))
    return b.select(negative, inverse, positive)


@lowers(aten.float_power.Tensor_Tensor, aten.float_power.Tensor_Scalar, aten.float_power.Scalar)
def float_power(cx: Context, x: Value, y: Value) -> Node:
    return formula(cx, b.power, x, y)


@lowers(aten.ldexp.Tensor)
def ldexp(cx: Context, x: Node, y: Node) -> Node:
    return formula(cx, lambda v, n: b.multiply(v, b.power(e.like(n, 2), n)), x, y)


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
        v = b.maximum(v, b.broadcast_to(e.value(low, wide), cx.shape))
    if high is not None:
        v = b.minimum(v, b.broadcast_to(e.value(high, wide), cx.shape))
    return finish(cx, v)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(cx: Context, x: Node, low: Value) -> Node:
    return clamp(cx, x, low)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(cx: Context, x: Node, high: Value) -> Node:
    return clamp(cx, x, None, high)


@lowers(aten.addcmul.default)
def addcmul(cx: Context, x: Node, y: Node, z: Node, *, value: Scalar = 1) -> Node:
    return formula(cx, lambda x, y, z: b.add(x, b.multiply(e.scaled(y, value), z)), x, y, z)


@lowers(aten.addcdiv.default)
def addcdiv(cx: Context, x: Node, y: Node, z: Node, *, value: Scalar = 1) -> Node:
    return formula(cx, lambda x, y, z: b.add(x, b.divide(e.scaled(y, value), z)), x, y, z)


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


# ---- complex numbers ----------------------------------------------------------------------------


@lowers(aten.complex.default)
def complex_(cx: Context, real: Node, imag: Node) -> Node:
    part = DType.F32 if cx.dtype is DType.C64 else DType.F64
    return b.complex_(*e.together(part, real, imag))


@lowers(aten.polar.default)
def polar(cx: Context, size: Node, angle: Node) -> Node:
    part = DType.F32 if cx.dtype is DType.C64 else DType.F64
    size, angle = e.together(part, size, angle)
    return b.complex_(b.multiply(size, b.cos(angle)), b.multiply(size, b.sin(angle)))


@lowers(aten.real.default)
def real(_cx: Context, x: Node) -> Node:
    return b.real(x) if x.dtype.is_complex else x


@lowers(aten.imag.default)
def imag(_cx: Context, x: Node) -> Node:
    return b.imag(x)


@lowers(
    aten._conj.default, aten._conj_physical.default, aten.conj_physical.default, aten._conj_copy.default
)
def conj(_cx: Context, x: Node) -> Node:
    return b.conj(x) if x.dtype.is_complex else x


@lowers(aten.resolve_conj.default, aten.resolve_neg.default)
def resolved(_cx: Context, x: Node) -> Node:
    return x


@lowers(aten._neg_view.default, aten._neg_view_copy.default)
def neg_view(cx: Context, x: Node) -> Node:
    return formula(cx, b.negate, x)


@lowers(aten.angle.default)
def angle(cx: Context, x: Node) -> Node:
    if x.dtype.is_complex:
        return b.atan2(b.imag(x), b.real(x))
    v = b.convert(x, compute_dtype(cx.dtype))
    sign = b.select(b.less(v, e.like(v, 0)), e.like(v, math.pi), e.like(v, 0))
    return finish(cx, b.select(b.is_nan(v), v, sign))


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(_cx: Context, x: Node) -> Node:
    return b.stack([b.real(x), b.imag(x)], x.type.rank)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(_cx: Context, x: Node) -> Node:
    last = x.type.rank - 1
    parts = [
        b.reshape(b.slice_dim(x, last, i, i + 1), x.shape[:-1]) for i in range(2)
    ]
    return b.complex_(parts[0], parts[1])


@lowers(aten.frexp.Tensor)
def frexp(cx: Context, x: Node) -> tuple[Node, Node]:
    """Mantissa in [0.5, 1) and exponent, read from the bits; denormals are scaled up first."""
    wide = b.convert(x, compute_dtype(x.dtype))
    double = wide.dtype is DType.F64
    bits_type, shift, bias = (DType.S64, 52, 1022) if double else (DType.S32, 23, 126)
    boost = 2.0 ** (shift + 1)
    tiny = b.less(b.abs_(wide), e.like(wide, torch.finfo(_torch_float(double)).tiny))
    scaled = b.select(tiny, b.multiply(wide, e.like(wide, boost)), wide)
    bits = b.bitcast_convert(scaled, bits_type)
    field = (1 << (11 if double else 8)) - 1
    biased = b.and_(b.shift_right_arithmetic(bits, e.like(bits, shift)), e.like(bits, field))
    exponent = b.subtract(biased, e.like(bits, bias))
    exponent = b.select(tiny, b.subtract(exponent, e.like(bits, shift + 1)), exponent)
    kept = b.and_(bits, e.like(bits, ~(field << shift)))
    mantissa = b.bitcast_convert(b.or_(kept, e.like(bits, bias << shift)), wide.dtype)
    special = b.or_(b.equal(wide, e.like(wide, 0)), b.not_(b.is_finite(wide)))
    return (
        b.convert(b.select(special, wide, mantissa), cx.types[0].dtype),
        b.convert(b.select(special, e.like(exponent, 0), exponent), cx.types[1].dtype),
    )


def _torch_float(double: bool) -> torch.dtype:
    return torch.float64 if double else torch.float32


@lowers_name("prims::fma")  # defined by a module that Dynamo loads when it wants one
def fma(cx: Context, x: Node, y: Node, z: Node) -> Node:
    """X * y + z; that the product is not rounded is an allowance, not a promise."""
    return formula(cx, lambda x, y, z: b.add(b.multiply(x, y), z), x, y, z)
