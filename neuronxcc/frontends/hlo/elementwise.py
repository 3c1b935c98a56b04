"""Elementwise instructions."""

from __future__ import annotations

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.site import Handler, Site
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.make import make
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Xla
from neuronxcc.ir.table import TABLE as OPERATORS
from neuronxcc.ir.table import Group

#: Unsigned integers by their size in bytes.
UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
_SIGNED = {1: DType.S8, 2: DType.S16, 4: DType.S32, 8: DType.S64}

#: Names of XLA for operators that the tensor IR calls otherwise.
_OTHER_NAMES = {
    "round-nearest-even": Op.ROUND_EVEN,
    "shift-right-arithmetic": Op.SHIFT_RIGHT_ARITHMETIC,
    "shift-right-logical": Op.SHIFT_RIGHT_LOGICAL,
    "popcnt": Op.POPCNT,
}
#: What the arithmetic of truth values means.
_OF_PRED = {Op.ADD: Op.OR, Op.MULTIPLY: Op.AND, Op.MAXIMUM: Op.OR, Op.MINIMUM: Op.AND}
_XLA = frozenset(op for op, operator in OPERATORS.items() if operator.xla is not Xla.NO)
LARGEST_F8E4M3FN = 464.0  # what is larger rounds beyond 448


def _hlo_name(op: Op) -> str:
    return op.value.replace("_", "-")


def _unary(op: Op) -> Handler:
    def handle(site: Site) -> Node:
        x = site.one
        if op is Op.ABS and x.dtype.is_unsigned:
            return x
        return build.unary(op, x)

    return handle


def _binary(op: Op) -> Handler:
    def handle(site: Site) -> Node:
        lhs, rhs = site.take(2)
        actual = _OF_PRED.get(op, op) if lhs.dtype is DType.PRED else op
        return make(actual, (lhs, rhs))

    return handle


def total_order(x: Node) -> Node:
    """Integers that are ordered as the floats are by IEEE's total order: -NaN first, NaN last."""
    size = x.dtype.itemsize
    bits = build.bitcast_convert(x, _SIGNED[size])
    sign = build.shift_right_arithmetic(bits, 8 * size - 1)
    rest = build.bitcast_convert(build.shift_right_logical(sign, 1), _SIGNED[size])
    return build.xor(bits, rest)


def _compare(site: Site) -> Node:
    lhs, rhs = site.take(2)
    if site.proto.comparison_type == "TOTALORDER" and lhs.dtype.is_float:
        lhs, rhs = total_order(lhs), total_order(rhs)
    return build.compare(lhs, rhs, site.proto.comparison_direction)


def _convert(site: Site) -> Node:
    x, dtype = site.one, site.tensor_type.dtype
    if x.dtype.is_complex and not dtype.is_complex:
        x = build.real(x)
    result = build.convert(x, dtype)
    if dtype is DType.F8E4M3FN and x.dtype.is_float and x.dtype.itemsize > 1:
        # XLA has no infinity to round to and gives NaN; the tensor IR saturates, as PyTorch.
        too_large = build.greater(build.abs_(build.convert(x, DType.F32)), LARGEST_F8E4M3FN)
        result = build.select(too_large, build.full_like(result, float("nan")), result)
    return result


def _bitcast(site: Site) -> Node:
    """The same bits; if the size changes, the last dimension appears or goes."""
    x, type_ = site.one, site.tensor_type
    old, new = x.dtype.itemsize, type_.dtype.itemsize
    if DType.PRED in (x.dtype, type_.dtype) or x.dtype.is_complex or type_.dtype.is_complex:
        if x.dtype is type_.dtype:
            return x
        raise unsupported(f"bitcast-convert of {x.type} to {type_}")
    if old == new:
        return build.bitcast_convert(x, type_.dtype)
    bits = build.bitcast_convert(x, UNSIGNED[old])
    small, wide = UNSIGNED[min(old, new)], UNSIGNED[max(old, new)]
    step, count = 8 * min(old, new), max(old, new) // min(old, new)
    if old > new:
        parts = [build.shift_right_logical(bits, step * i) if i else bits for i in range(count)]
        mask = (1 << step) - 1
        cut = [build.convert(build.and_(part, mask), small) for part in parts]
        return build.bitcast_convert(build.stack(cut, x.type.rank), type_.dtype)
    if not x.shape or x.shape[-1] != count:
        raise invalid(f"bitcast-convert of {x.type} to {type_} needs a last dimension of {count}")
    last, total = x.type.rank - 1, None
    for i in range(count):
        part = build.slice_dim(bits, last, i, i + 1)
        part = build.convert(build.reshape(part, x.shape[:-1]), wide)
        part = build.shift_left(part, step * i) if i else part
        total = part if total is None else build.or_(total, part)
    assert total is not None  # count is at least 2
    return build.bitcast_convert(total, type_.dtype)


def _round_away(site: Site) -> Node:
    """To the nearest integer, halves away from zero."""
    x = site.one
    whole = build.unary(Op.TRUNC, x)
    far = build.greater_equal(build.abs_(build.subtract(x, whole)), 0.5)
    return build.select(far, build.add(whole, build.sign(x)), whole)


def _cube_root(site: Site) -> Node:
    """A power, then a step of Newton's, which makes it exact to the last bits."""
    x = site.one
    wide = build.convert(x, DType.F32) if x.dtype.itemsize < 4 else x
    a = build.abs_(wide)
    root = build.power(a, 1 / 3)
    square = build.multiply(root, root)
    better = build.subtract(
        root,
        build.divide(build.subtract(root, build.divide(a, square)), 3.0),
    )
    usable = build.and_(build.greater(square, 0.0), build.is_finite(square))
    root = build.select(usable, better, root)
    signed = build.select(build.less(wide, 0.0), build.negate(root), root)
    signed = build.select(build.equal(wide, 0.0), wide, signed)  # keeps -0.0
    return build.convert(signed, x.dtype)


def _leading_zeros(site: Site) -> Node:
    """Bits set by smearing the highest one down are all but the leading zeros."""
    x = site.one
    bits = build.bitcast_convert(x, UNSIGNED[x.dtype.itemsize])
    width, step = 8 * x.dtype.itemsize, 1
    while step < width:
        bits = build.or_(bits, build.shift_right_logical(bits, step))
        step *= 2
    zeros = build.popcnt(build.not_(bits))
    return build.bitcast_convert(zeros, x.dtype)


def _high_product(site: Site) -> Node:
    """The upper half of the bits of a product."""
    lhs, rhs = site.take(2)
    size = lhs.dtype.itemsize
    if not lhs.dtype.is_integer:
        raise invalid(f"mulhi of {lhs.type}")
    if size < 8:
        wide = _SIGNED[8] if lhs.dtype.is_signed else UNSIGNED[8]
        product = build.multiply(build.convert(lhs, wide), build.convert(rhs, wide))
        return build.convert(build.shift_right_logical(product, 8 * size), lhs.dtype)
    first, second = (build.bitcast_convert(x, DType.U64) for x in (lhs, rhs))
    high = _high_of_64(first, second)
    if lhs.dtype.is_signed:
        for x, other in ((lhs, second), (rhs, first)):  # -1 in the upper half takes one away
            negative = build.less(x, build.full_like(x, 0))
            none = build.full_like(other, 0)
            high = build.subtract(high, build.select(negative, other, none))
    return build.bitcast_convert(high, lhs.dtype)


def _high_of_64(lhs: Node, rhs: Node) -> Node:
    """By halves of 32 bits, whose products and carries fit into 64."""
    low = 0xFFFFFFFF
    a0, b0 = build.and_(lhs, low), build.and_(rhs, low)
    a1, b1 = build.shift_right_logical(lhs, 32), build.shift_right_logical(rhs, 32)
    first = build.add(build.multiply(a1, b0), build.shift_right_logical(build.multiply(a0, b0), 32))
    second = build.add(build.multiply(a0, b1), build.and_(first, low))
    carried = build.add(build.shift_right_logical(first, 32), build.shift_right_logical(second, 32))
    return build.add(build.multiply(a1, b1), carried)


def _real(site: Site) -> Node:
    x = site.one
    return build.real(x) if x.dtype.is_complex else x


def _imag(site: Site) -> Node:
    x = site.one
    return build.imag(x) if x.dtype.is_complex else build.full_like(x, 0)


def _is_finite(site: Site) -> Node:
    x = site.one
    if x.dtype.is_float:
        return build.is_finite(x)
    return build.constant(np.ones(x.shape, np.bool_))


def _select(site: Site) -> Node:
    pred, on_true, on_false = site.take(3)
    return build.select(pred, on_true, on_false)


def _clamp(site: Site) -> Node:
    low, x, high = site.take(3)
    return build.clamp(low, x, high)


def _reduce_precision(site: Site) -> Node:
    return build.reduce_precision(site.one, site.proto.exponent_bits, site.proto.mantissa_bits)


TABLE: dict[str, Handler] = {
    **{_hlo_name(op): _unary(op) for op in Group.UNARY & _XLA},
    **{_hlo_name(op): _binary(op) for op in Group.BINARY & _XLA},
    **{n: (_unary if op in Group.UNARY else _binary)(op) for n, op in _OTHER_NAMES.items()},
    "complex": _binary(Op.COMPLEX),
    "compare": _compare,
    "convert": _convert,
    "bitcast-convert": _bitcast,
    "round-nearest-afz": _round_away,
    "cbrt": _cube_root,
    "count-leading-zeros": _leading_zeros,
    "mulhi": _high_product,
    "real": _real,
    "imag": _imag,
    "is-finite": _is_finite,
    "select": _select,
    "clamp": _clamp,
    "reduce-precision": _reduce_precision,
}
