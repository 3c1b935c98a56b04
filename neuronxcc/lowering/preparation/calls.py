"""Operators that ATen's CPU library executes although a NeuronCore has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronxcc.ir import build, indexing
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import FLOATS8, DType
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.lowering.errors import LoweringUnsupportedError

# Types that few operators of ATen take, and one that holds all their values.
_WIDER = {
    **dict.fromkeys(FLOATS8, DType.F32),
    DType.U16: DType.S32,
    DType.U32: DType.S64,
    DType.U64: DType.S64,
}
_SHORT = frozenset({DType.BF16, DType.F16})


def _call(target: str, type_: TensorType, operands: Sequence[Node], args: tuple[Any, ...]) -> Node:
    return build.custom_call(target, (type_,), operands, args=args)


# ---- products -----------------------------------------------------------------------------------


def batched_product(node: Node) -> Node:
    """A DOT_GENERAL by aten::bmm, operands of the result's type."""
    lhs, rhs = node.srcs
    batch, contract = len(node["lhs_batch"]), len(node["lhs_contract"])
    rows = lhs.type.rank - batch - contract
    groups = (node.shape[:batch], node.shape[batch : batch + rows], node.shape[batch + rows :])
    b, m, n = (math.prod(group) for group in groups)
    k = math.prod(lhs.shape[d] for d in node["lhs_contract"])

    def ordered(x: Node, side: str, *, contract_first: bool) -> Node:
        lead, tail = node[f"{side}_batch"], node[f"{side}_contract"]
        free = [d for d in range(x.type.rank) if d not in lead and d not in tail]
        return build.transpose(x, (*lead, *(tail if contract_first else free),
                                   *(free if contract_first else tail)))  # fmt: skip

    left = build.reshape(ordered(lhs, "lhs", contract_first=False), (b, m, k))
    right = build.reshape(ordered(rhs, "rhs", contract_first=True), (b, k, n))
    type_ = TensorType(node.dtype, (b, m, n))
    product = _call("aten::bmm", type_, (left, right), (Operand(0), Operand(1)))
    return build.reshape(product, node.shape)


def convolution(node: Node) -> Node | None:
    """A CONVOLUTION by aten::convolution, its dimensions put in PyTorch's order."""
    x, w = node.srcs
    if not (x.type.size and w.type.size):
        return build.splat(0, node.type)
    rank = x.type.rank - 2
    if not 1 <= rank <= 3:
        raise LoweringUnsupportedError(
            node, f"{rank} spatial dimensions", "Reshape to 1, 2 or 3 spatial dimensions"
        )
    dtype = _convolved_type(node)
    # What convolve.py makes a step of has sums of float32 whatever its operands are.
    wide = rank == 2 and x.dtype in _SHORT and w.dtype is x.dtype and node.dtype is DType.F32
    given = x.dtype if wide else dtype
    x = build.convert(build.transpose(x, node["lhs_spec"]), given)
    w = build.convert(build.transpose(w, node["rhs_spec"]), given)
    x, padding = _padded(node, x)
    groups = node["feature_group_count"]
    if node["batch_group_count"] > 1:
        groups = node["batch_group_count"]
        batch, features = x.shape[:2]
        x = build.reshape(x, (groups, batch // groups, features, *x.shape[2:]))
        x = build.transpose(x, (1, 0, *range(2, rank + 3)))
        x = build.reshape(x, (batch // groups, groups * features, *x.shape[3:]))
    shape = tuple(node.shape[d] for d in node["out_spec"])
    zeros = (0,) * rank
    sizes = (node["strides"], padding, node["rhs_dilation"])
    args = (Operand(0), Operand(1), None, *sizes, False, zeros, groups)  # False: not transposed
    result = _call("aten::convolution", TensorType(dtype, shape), (x, w), args)
    order = [node["out_spec"].index(d) for d in range(rank + 2)]
    return build.convert(build.transpose(result, order), node.dtype)


def _convolved_type(node: Node) -> DType:
    """The type to compute in: holds operands and result.

    What convolve.py makes no step of is in float32 if it is shorter: see csrc/conv/by_aten.h.
    """
    given = node.srcs[0].dtype
    if given.is_integer:
        return DType.F64
    if given in _SHORT and node.type.rank != 4:
        return DType.F32
    if given.is_complex or given is DType.F64 or given is node.dtype:
        return given
    return DType.F32


def _padded(node: Node, x: Node) -> tuple[Node, tuple[int, ...]]:
    """Padding that aten::convolution takes itself, else as an operation of its own."""
    low, high, holes = node["low"], node["high"], node["lhs_dilation"]
    if low == high and min(low) >= 0 and set(holes) == {1}:
        return x, low
    edges = ((0, 0, *low), (0, 0, *high), (0, 0, *(d - 1 for d in holes)))
    fill = build.constant(0, x.dtype)
    return build.pad(x, fill, *edges), (0,) * len(low)


# ---- along a dimension --------------------------------------------------------------------------

_CUMULATIVE = {
    "add": "aten::cumsum",
    "mul": "aten::cumprod",
    "max": "aten::cummax",
    "min": "aten::cummin",
    "logaddexp": "aten::logcumsumexp",
}


def cumulative(node: Node) -> Node | None:
    """A CUMULATIVE by ATen; 16-bit sums in float32, rounded once each."""
    (x,) = node.srcs
    kind, dim = node["kind"], node["dim"]
    if x.shape[dim] == 1:
        return build.alone(x, kind)
    dtype = _WIDER.get(x.dtype, x.dtype)
    if kind in ("add", "mul", "logaddexp") and dtype in (DType.BF16, DType.F16):
        dtype = DType.F32
    if x.dtype is DType.PRED:
        dtype = DType.U8
    x = build.convert(x, dtype)
    if kind in ("min", "max"):
        types = (x.type, TensorType(DType.S64, x.shape))
        both = build.custom_call(_CUMULATIVE[kind], types, (x,), args=(Operand(0), dim))
        return build.convert(build.get(both, 0), node.dtype)
    kwargs = {} if kind == "logaddexp" else {"dtype": dtype}
    target = _CUMULATIVE[kind]
    result = build.custom_call(target, (x.type,), (x,), args=(Operand(0), dim), kwargs=kwargs)
    return build.convert(result, node.dtype)


def sort(node: Node) -> Node | None:
    """A SORT of one operand."""
    return _sorted(node, 0) if len(node.types) == 1 else None


def result(node: Node) -> Node | None:
    """A result of a SORT or TOPK."""
    (owner,) = node.srcs
    if owner.op is Op.SORT:
        return _sorted(owner, node["index"])
    if owner.op is Op.TOPK:
        return _topk(owner, node["index"])
    return None


def _sortable(x: Node) -> Node:
    return build.convert(x, _WIDER.get(x.dtype, x.dtype))


def _sorted(node: Node, index: int) -> Node:
    x = node.srcs[index]
    if not x.type.size:
        return x
    key = _sortable(node.srcs[0])
    places = TensorType(DType.S64, key.shape)
    kwargs = {"stable": True, "dim": node["dim"], "descending": node["descending"]}
    both = build.custom_call(
        "aten::sort.stable", (key.type, places), (key,), args=(Operand(0),), kwargs=kwargs
    )
    if index == 0:
        return build.convert(build.get(both, 0), x.dtype)
    order = build.get(both, 1)
    if _counts_along(x, node["dim"]):
        return build.convert(order, x.dtype)
    return indexing.take_along(x, order, node["dim"])


def _counts_along(x: Node, dim: int) -> bool:
    """Return whether every element is its own position along the dimension."""
    while x.op is Op.BROADCAST_IN_DIM and dim in x["dims"]:
        dim = x["dims"].index(dim)
        x = x.srcs[0]
    return x.op is Op.IOTA and x["dim"] == dim


def _topk(node: Node, index: int) -> Node:
    (x,) = node.srcs
    type_ = node.types[index]
    if not type_.size:
        return build.constant(np.empty(type_.shape, type_.dtype.numpy))
    place = _extreme_places(x, node["k"], largest=node["largest"])
    return place if index else indexing.take_along(x, place, x.type.rank - 1)


def _extreme_places(x: Node, k: int, *, largest: bool) -> Node:
    """Positions of the k extremes along the last dimension; among equals the lower one first."""
    last = x.type.rank - 1
    extent = x.shape[last]
    if k == 1:
        return extreme_place(x, "max" if largest else "min", last)
    if x.dtype.itemsize > 4:
        kwargs = {"stable": True, "dim": last, "descending": largest}
        key = _sortable(x)
        types = (key.type, TensorType(DType.S64, key.shape))
        both = build.custom_call(
            "aten::sort.stable", types, (key,), args=(Operand(0),), kwargs=kwargs
        )
        return build.slice_dim(build.get(both, 1), last, 0, k)
    # Value and position in one integer, so that no two are equal: aten::topk keeps no order.
    place = build.iota(DType.S64, x.shape, last)
    low = build.subtract(extent - 1, place) if largest else place
    key = build.add(build.multiply(_ordered_key(x, DType.S32), 1 << 32), low)
    types = (TensorType(DType.S64, (*x.shape[:last], k)),) * 2
    args = (Operand(0), k, -1, largest, True)
    found = build.get(build.custom_call("aten::topk", types, (key,), args=args), 0)
    low = build.and_(found, (1 << 32) - 1)
    return build.subtract(extent - 1, low) if largest else low


def extreme_place(x: Node, kind: str, dim: int) -> Node:
    """ARG_REDUCE that keeps the dimension; nothing is searched for in an extent of 1."""
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
    if x.shape[dim] == 1:
        return build.constant(0, DType.S64, shape)
    return build.arg_reduce(x, kind, dim, keep=True)


# ---- windows ------------------------------------------------------------------------------------


def select_and_scatter(node: Node) -> Node | None:
    """Find the extreme of every window, then scatter to where it came from."""
    x, source = node.srcs
    base = build.constant(np.asarray(neutral(node["kind"], node.dtype)))
    start = build.broadcast_in_dim(base, x.shape, ())
    if not source.type.size or not x.type.size:
        return start
    rank, window = x.type.rank, node["window"]
    count = math.prod(window)
    # Every element of every window: its coordinates, and its value as an integer that orders like
    # it, so that padding can be put behind everything.
    shape = (*source.shape, count)
    place = build.iota(DType.S64, shape, rank)
    coords = []
    inside = build.constant(value=True, dtype=DType.PRED, shape=shape)
    step = count
    for dim in range(rank):
        step //= window[dim]
        within = build.remainder(build.divide(place, step), window[dim])
        first = build.multiply(build.iota(DType.S64, shape, dim), node["strides"][dim])
        index = build.add(build.subtract(first, node["low"][dim]), within)
        fits = build.and_(build.greater_equal(index, 0), build.less(index, x.shape[dim]))
        inside = build.and_(inside, fits)
        coords.append(build.clamp(0, index, x.shape[dim] - 1))
    key = _ordered_key(x)
    if node["select"] == "min":
        key = build.subtract(-1, key)
        if x.dtype.is_float:  # NaN beats everything, either way
            key = build.select(build.is_nan(x), build.full_like(key, (1 << 63) - 1), key)
    values = indexing.take_nd(key, build.stack(coords, rank + 1), range(rank))
    values = build.select(inside, values, -(1 << 63))
    chosen = extreme_place(values, "max", rank)
    targets = [indexing.take_along(c, chosen, rank) for c in (*coords, inside)]
    *where, valid = (build.reshape(t, source.shape) for t in targets)
    # What lies outside is left out by the scatter.
    where = [build.select(valid, where[0], -1), *where[1:]]
    return _scattered(node, start, source, build.stack(where, rank))


def _scattered(node: Node, start: Node, source: Node, where: Node) -> Node:
    """The scatter, 16-bit sums in float32 and rounded once."""
    wide = node.dtype
    if node["kind"] in ("add", "mul") and wide in (DType.BF16, DType.F16, *FLOATS8):
        wide = DType.F32
    total = indexing.put_nd(
        build.convert(start, wide),
        where,
        build.convert(source, wide),
        range(start.type.rank),
        node["kind"],
    )
    return build.convert(total, node.dtype)


def _ordered_key(x: Node, dtype: DType = DType.S64) -> Node:
    """Integers of 64 bits that compare like the elements; -0.0 like 0.0, NaN above everything.

    With `dtype` S32, for elements of up to 32 bits, they are in the range of that type.
    """
    if not x.dtype.is_float:
        wide = build.convert(x, DType.S64)
        return build.subtract(wide, 1 << 31) if x.dtype is DType.U32 else wide
    bits = DType.F32 if dtype is DType.S32 else DType.F64
    # -0.0 + 0.0 is 0.0.
    key = build.bitcast_convert(build.add(build.convert(x, bits), 0.0), dtype)
    lowest = -(1 << (8 * dtype.itemsize - 1))
    key = build.select(build.less(key, 0), build.subtract(lowest, key), key)
    key = build.select(build.is_nan(x), build.full_like(key, -lowest - 1), key)
    return build.convert(key, DType.S64)
