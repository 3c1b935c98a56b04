"""Positions: iota moved about is an iota, comparisons that positions decide, gathers in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.indices import index_shape
from neuronxcc.passes.canonical import dimension_map
from neuronxcc.passes.match import fill, scalar_of, splat, spread
from neuronxcc.passes.rules import Rule, rule

Interval = tuple[int, int]


@rule("iota of one", Op.IOTA)
def iota_one(node: Node) -> Node | None:
    """It is 0."""
    return fill(0, node.type) if node.shape[node["dim"]] == 1 else None


@rule("iota moved about", Op.BROADCAST_IN_DIM, Op.RESHAPE, Op.TRANSPOSE)
def iota_moved(node: Node) -> Node | None:
    """An iota along another dimension."""
    (x,) = node.srcs
    if x.op is not Op.IOTA or not node.type.size:
        return None
    dim = x["dim"]
    if node.op is Op.BROADCAST_IN_DIM:
        place = node["dims"][dim]
        return build.iota(node.dtype, node.shape, place) if x.shape[dim] != 1 else None
    if node.op is Op.TRANSPOSE:
        return build.iota(node.dtype, node.shape, node["permutation"].index(dim))
    places = dimension_map(x.shape, node.shape)
    if places is None or dim not in places:
        return None
    return build.iota(node.dtype, node.shape, places[dim])


@rule("slice of an iota", Op.SLICE)
def iota_slice(node: Node) -> Node | None:
    """An iota, scaled and shifted (integers only: it is the same in all bits)."""
    (x,) = node.srcs
    if x.op is not Op.IOTA or not node.type.size:
        return None
    dim = x["dim"]
    start, stride = node["starts"][dim], node["strides"][dim]
    result = build.iota(node.dtype, node.shape, dim)
    if (start, stride) == (0, 1):
        return result
    if not node.dtype.is_integer or not _holds(node.dtype, (0, x.shape[dim] - 1)):
        return None
    return build.add(build.multiply(result, stride), start)


@rule("iota of another type", Op.CONVERT)
def iota_convert(node: Node) -> Node | None:
    """Positions that the first type holds are the same in the second."""
    (x,) = node.srcs
    if x.op is not Op.IOTA or not x.dtype.is_integer or node.dtype is DType.PRED:
        return None
    if not _holds(x.dtype, (0, x.shape[x["dim"]] - 1)):
        return None
    return build.iota(node.dtype, node.shape, x["dim"])


# ---- what is known about integers ---------------------------------------------------------------


def _holds(dtype: DType, interval: Interval) -> bool:
    info = np.iinfo(dtype.numpy)
    return int(info.min) <= interval[0] and interval[1] <= int(info.max)


def interval(node: Node, depth: int = 8) -> Interval | None:
    """Bounds that all elements of an integer tensor keep, or None."""
    if node.dtype is DType.PRED:
        return (0, 1)
    if not node.dtype.is_integer or not depth or not node.type.size:
        return None
    if node.op is Op.CONSTANT:
        array = node["literal"].array
        return (int(array.min()), int(array.max()))
    found = _bounds(node, depth - 1)
    return found if found is not None and _holds(node.dtype, found) else None


def _bounds(node: Node, depth: int) -> Interval | None:
    own = _OWN.get(node.op)
    found = own(node, depth) if own is not None else None
    if found is not None:
        return found
    combine = _COMBINE.get(node.op)
    if combine is None:
        return None
    operands = node.srcs[1:] if node.op is Op.SELECT else node.srcs
    if node.op in _FIRST:
        operands = node.srcs[:1]
    known = []
    for src in operands:
        bounds = interval(src, depth)
        if bounds is None and node.op in _LIMITS:
            info = np.iinfo(src.dtype.numpy)
            bounds = (int(info.min), int(info.max))
        if bounds is None:
            return None
        known.append(bounds)
    return combine(*known)


def _counted(node: Node, _depth: int) -> Interval:
    return (0, node.shape[node["dim"]] - 1)


def _found(node: Node, _depth: int) -> Interval:
    return (0, node.srcs[0].shape[node["dim"]] - 1)


def _result(node: Node, depth: int) -> Interval | None:
    (owner,) = node.srcs
    if owner.op is Op.TOPK and node["index"]:
        return (0, owner.srcs[0].shape[-1] - 1)
    return interval(owner.srcs[node["index"]], depth) if owner.op is Op.SORT else None


def _is_check(node: Node) -> bool:
    return node.op is Op.CUSTOM_CALL and node["target"] == CHECK


def _token(node: Node, _depth: int) -> Interval | None:
    return (0, 0) if _is_check(node) else None


def _checked(node: Node, _depth: int) -> Interval | None:
    """The bounds of values to which their own check was added."""
    for values, other in (node.srcs, node.srcs[::-1]):
        token = other.srcs[0] if other.op is Op.BROADCAST_IN_DIM else other
        if _is_check(token) and token.srcs[0] is values:
            _, low, high, *_ = token["args"]
            return (low, high)
    return None


_OWN: dict[Op, Callable[[Node, int], Interval | None]] = {
    Op.IOTA: _counted,
    Op.ARG_REDUCE: _found,
    Op.GET: _result,
    Op.CUSTOM_CALL: _token,
    Op.ADD: _checked,
}


def _union(*parts: Interval) -> Interval:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _product(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


_FIRST = frozenset({Op.GATHER, Op.DYNAMIC_SLICE})
# They say something of any operand.
_LIMITS = frozenset({Op.MAXIMUM, Op.MINIMUM, Op.CLAMP})
_COMBINE: dict[Op, Callable[..., Interval]] = {
    **dict.fromkeys(
        (
            *(Op.BROADCAST_IN_DIM, Op.RESHAPE, Op.TRANSPOSE, Op.SLICE, Op.REVERSE, Op.CONVERT),
            *(Op.CONCATENATE, Op.PAD, Op.SELECT, Op.GATHER, Op.DYNAMIC_SLICE),
        ),
        _union,
    ),
    Op.ADD: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Op.SUBTRACT: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    Op.MULTIPLY: _product,
    Op.MAXIMUM: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Op.MINIMUM: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Op.CLAMP: lambda low, x, high: (
        min(max(x[0], low[0]), high[0]),
        min(max(x[1], low[1]), high[1]),
    ),
}


@rule("comparison that bounds decide", Op.COMPARE)
def compare_bounds(node: Node) -> Node | None:
    """Positions are not negative, for instance."""
    if not node.srcs[0].dtype.is_integer:
        return None
    left, right = (interval(src) for src in node.srcs)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    direction = node["direction"]
    # For each direction: surely true, surely false.
    always, never = {
        "LT": (b < c, a >= d),
        "LE": (b <= c, a > d),
        "GT": (a > d, b <= c),
        "GE": (a >= d, b < c),
        "EQ": (a == b == c == d, b < c or a > d),
        "NE": (b < c or a > d, a == b == c == d),
    }[direction]
    return fill(always, node.type) if always or never else None


# ---- gathers ------------------------------------------------------------------------------------


@rule("gather in order", Op.GATHER)
def gather_in_order(node: Node) -> Node | None:
    """Rows 0, 1, 2, ... or one row again and again: a slice, moved to its place.

    Position embeddings and rows taken by a constant come like this.
    """
    x, indices = node.srcs
    if not _takes_rows(node):
        return None
    (dim,) = node["start_index_map"]
    shape, _ = index_shape(Op.GATHER, indices.type, node.attrs)
    batch = [d for d in range(node.type.rank) if d not in node["offset_dims"]]
    places = iter(node["offset_dims"])
    dims = [next(places) if d != dim else -1 for d in range(x.type.rank)]
    row = splat(indices) if scalar_of(indices) is not None else None
    if row is not None:
        start = min(max(int(row), 0), x.shape[dim] - 1)
        rows = build.slice_dim(x, dim, start, start + 1)
        rows = build.reshape(rows, [n for d, n in enumerate(x.shape) if d != dim])
        return spread(rows, node.shape, [place for place in dims if place >= 0])
    if indices.op is not Op.IOTA or indices["dim"] == node["index_vector_dim"]:
        return None
    along = indices["dim"] - (indices["dim"] > node["index_vector_dim"])
    count = shape[along]
    if count > x.shape[dim] or not _holds(indices.dtype, (0, count - 1)):
        return None
    dims[dim] = batch[along]
    return spread(build.slice_dim(x, dim, 0, count), node.shape, dims)


def _takes_rows(node: Node) -> bool:
    """Return whether every index takes all of the operand at one position of one dimension."""
    x = node.srcs[0]
    if len(node["start_index_map"]) != 1 or node["operand_batching_dims"]:
        return False
    (dim,) = node["start_index_map"]
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    return bool(node["collapsed_slice_dims"] == (dim,) and node["slice_sizes"] == sizes)


@rule("check that bounds decide", Op.CUSTOM_CALL)
def check_bounds(node: Node) -> Node | None:
    """Positions that were counted or cut off need no check."""
    if not _is_check(node):
        return None
    _, low, high, *_ = node["args"]
    known = interval(node.srcs[0])
    sure = known is not None and low <= known[0] and known[1] <= high
    return fill(0, node.type) if sure else None


RULES: tuple[Rule, ...] = (
    iota_one,
    iota_moved,
    iota_slice,
    iota_convert,
    compare_bounds,
    check_bounds,
    gather_in_order,
)
