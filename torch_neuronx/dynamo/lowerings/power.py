"""Powers, and numbers taken apart into mantissa and exponent."""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.lowerings.pointwise import finish, formula, rounded_formula
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(
    aten.pow.Tensor_Scalar,
    aten.pow.Tensor_Tensor,
    aten.pow.Scalar,
    aten.float_power.Tensor_Tensor,
    aten.float_power.Tensor_Scalar,
    aten.float_power.Scalar,
)
def pow_(cx: Context, x: Value, y: Value) -> Node:
    if isinstance(y, complex) and not y.imag:
        y = y.real
    if not isinstance(y, Node) and not isinstance(y, complex):
        simple = _simple_power(cx, x, y)
        if simple is not None:
            return simple
    if cx.dtype is DType.PRED:
        x, y = e.together(DType.PRED, x, y)
        return finish(cx, b.or_(x, b.not_(y)))
    if cx.dtype.is_integer:
        return formula(cx, _integer_power, x, y)
    return rounded_formula(cx, b.power, x, y)


def _inverse(x: Node) -> Node:
    return b.divide(e.like(x, 1), x)


# The exponents that PyTorch's kernel computes without a power function.
_FOR_ALL: dict[float, Callable[[Node], Node]] = {
    0: lambda x: e.like(x, 1),
    1: lambda x: x,
    2: lambda x: b.multiply(x, x),
    3: lambda x: b.multiply(b.multiply(x, x), x),
}
_FOR_FRACTIONS: dict[float, Callable[[Node], Node]] = {
    0.5: b.sqrt,
    -0.5: b.rsqrt,
    -1: _inverse,
    -2: lambda x: _inverse(b.multiply(x, x)),
}


def _simple_power(cx: Context, x: Value, exponent: float) -> Node | None:
    if cx.dtype is DType.PRED or not isinstance(x, Node):
        return None
    wide = compute_dtype(cx.dtype)
    if cx.dtype is DType.F16 and abs(exponent) == 0.5:
        return None  # the one type for which PyTorch has no root here: (-inf) ** 0.5 is inf
    function = _FOR_ALL.get(exponent)
    if function is None and not wide.is_integer:
        function = _FOR_FRACTIONS.get(exponent)
    return None if function is None else finish(cx, function(b.convert(x, wide)))


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


@lowers(aten.ldexp.Tensor)
def ldexp(cx: Context, x: Node, y: Node) -> Node:
    return formula(cx, lambda v, n: b.multiply(v, b.power(e.like(n, 2), n)), x, y)


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
