"""Order statistics, by a sort along the dimension."""

from __future__ import annotations

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import demand
from torch_neuronx.dynamo.lowerings.index import put_along
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _sorted(x: Node, dim: int) -> tuple[Node, Node, int]:
    """Values in ascending order (NaN last), where they come from, and the dimension."""
    axis = e.dim(dim, x.type.rank)
    node = b.sort([x, e.positions(x.shape, axis)], axis)
    return b.get(node, 0), b.get(node, 1), axis


def _at(x: Node, axis: int, place: int) -> Node:
    """One element along a dimension, which goes."""
    return b.reshape(
        b.slice_dim(x, axis, place, place + 1), (*x.shape[:axis], *x.shape[axis + 1 :])
    )


def _pick(x: Node, axis: int, place: Node) -> Node:
    """The element at `place`, one integer for every position of the other dimensions."""
    here = b.equal(e.positions(x.shape, axis), e.back(place, x.shape, (axis,)))
    return b.reduce(b.select(here, x, e.like(x, 0)), "add", axis)


def _shaped(cx: Context, values: Node, indices: Node) -> tuple[Node, Node]:
    return b.reshape(values, cx.shape), b.reshape(indices, cx.shape)


@lowers(aten.kthvalue.default)
def kthvalue(
    cx: Context, x: Node, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Node, Node]:
    del keepdim
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    values, indices, axis = _sorted(x, dim)
    return _shaped(cx, _at(values, axis, k - 1), _at(indices, axis, k - 1))


@lowers(aten.median.dim)
def median_dim(cx: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    del keepdim
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    values, indices, axis = _sorted(x, dim)
    middle = (x.shape[axis] - 1) // 2
    value, index = _at(values, axis, middle), _at(indices, axis, middle)
    if x.dtype.is_float:
        last = _at(values, axis, x.shape[axis] - 1)
        index = b.select(b.is_nan(last), b.arg_reduce(x, "max", axis), index)
        value = b.select(b.is_nan(last), last, value)
    return _shaped(cx, value, index)


@lowers(aten.nanmedian.dim)
def nanmedian_dim(cx: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    if not x.type.rank or not x.dtype.is_float:
        return median_dim(cx, x, dim, keepdim)
    values, indices, axis = _sorted(x, dim)
    real = b.convert(b.not_(b.is_nan(x)), DType.S64)
    count = b.reduce(real, "add", axis)
    one = e.like(count, 1)
    middle = b.divide(b.maximum(b.subtract(count, one), e.like(count, 0)), e.like(count, 2))
    # Where every value is NaN the first one is the answer.
    safe = b.select(b.is_nan(values), e.like(values, 0), values)
    value = _pick(safe, axis, middle)
    nan = e.like(value, float("nan"))
    value = b.select(b.equal(count, e.like(count, 0)), nan, value)
    return _shaped(cx, value, _pick(indices, axis, middle))


@lowers(aten.median.default)
def median(cx: Context, x: Node) -> Node:
    return _whole(cx, x, nan=False)


@lowers(aten.nanmedian.default)
def nanmedian(cx: Context, x: Node) -> Node:
    return _whole(cx, x, nan=True)


def _whole(cx: Context, x: Node, *, nan: bool) -> Node:
    if not x.type.size:
        return e.number(float("nan"), cx.dtype)
    flat = b.reshape(x, (x.type.size,))
    return (nanmedian_dim if nan else median_dim)(cx, flat, 0)[0]


@lowers(aten.mode.default)
def mode(cx: Context, x: Node, dim: int = -1, keepdim: bool = False) -> tuple[Node, Node]:
    del keepdim
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    values, indices, axis = _sorted(x, dim)
    place = e.positions(x.shape, axis)
    before = b.concatenate(
        [b.slice_dim(values, axis, 0, 1), b.slice_dim(values, axis, 0, x.shape[axis] - 1)], axis
    )
    fresh = b.not_equal(values, before)
    start = b.cumulative(b.select(fresh, place, e.like(place, 0)), "max", axis)
    # The longest run of equal values; the smallest value among equals; its last position.
    best = b.arg_reduce(b.subtract(place, start), "max", axis)
    value = _pick_exact(values, axis, best)
    return _shaped(cx, value, _pick(indices, axis, best))


def _pick_exact(x: Node, axis: int, place: Node) -> Node:
    """Like `_pick`, infinities and NaN elsewhere included."""
    if x.dtype is DType.PRED:
        return b.convert(_pick(b.convert(x, DType.S32), axis, place), DType.PRED)
    here = b.equal(e.positions(x.shape, axis), e.back(place, x.shape, (axis,)))
    return b.reduce(b.select(here, x, e.like(x, 0)), "add", axis)


@lowers(aten.histc.default)
def histc(cx: Context, x: Node, bins: int = 100, low: float = 0, high: float = 0) -> Node:
    if low == high == 0:
        if not x.type.size:
            return e.number(0, cx.dtype, cx.shape)
        wide = DType.F64
        least, most = (b.reduce(b.convert(x, wide), kind) for kind in ("min", "max"))
        for end in (least, most):
            finite = b.equal(b.subtract(end, end), e.like(end, 0))
            demand(cx, finite, "torch.histc: the range of the values is not finite")
        same = b.equal(least, most)
        one = e.like(least, 1)
        least = b.select(same, b.subtract(least, one), least)
        most = b.select(same, b.add(most, one), most)
    else:
        wide = DType.F64
        edges = (low - 1, high + 1) if low == high else (low, high)
        least, most = (e.number(float(v), wide) for v in edges)
    v = b.reshape(b.convert(x, wide), (x.type.size,))
    start, end = (b.broadcast_to(t, v.shape) for t in (least, most))
    inside = b.and_(b.greater_equal(v, start), b.less_equal(v, end))
    share = b.divide(b.multiply(b.subtract(v, start), e.like(v, bins)), b.subtract(end, start))
    place = b.convert(b.floor(b.select(inside, share, e.like(v, 0))), DType.S64)
    place = b.minimum(place, e.like(place, bins - 1))
    return _counted(place, b.convert(inside, cx.dtype), bins)


def _counted(place: Node, weight: Node, bins: int) -> Node:
    return put_along(e.number(0, weight.dtype, (bins,)), [(0, place)], weight, "add")
