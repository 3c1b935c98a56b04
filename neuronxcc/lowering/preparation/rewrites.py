"""Rewrites what lowering has no direct form for into what it has: a rule per operator.

Afterwards there are no empty reductions or operands, 16-bit sums are accumulated in float32 by
explicit conversions, long reductions to few results are two, products are of floats of up to 32
bits, and sorting, scans, convolutions and the like are calls of ATen's operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import FLOATS8, DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import CALLS, CONTROL
from neuronxcc.lowering.geometry.chains import unchanged, value
from neuronxcc.lowering.preparation import calls
from neuronxcc.lowering.preparation.collectives import collective
from neuronxcc.lowering.preparation.support import call_elementwise, is_supported

Rule = Callable[[Node], Node | None]

NARROW = FLOATS8 | {DType.BF16, DType.F16}
GEMM = frozenset({DType.F32, DType.BF16, DType.F16})
SUMS = ("add", "mul")
LONG = 1 << 16  # elements: reductions of more, to few results, are done in parts
PARTS = 64  # at most; a number of its own, so that results do not depend on the threads
FEW = 256  # results
SMALL = 1 << 18  # multiplications of a product that a loop kernel does as well as any


def prepare(graph: Graph) -> Graph:
    """Rewrite a graph so that every node has a form in `fuse`."""
    return graph.rewrite(_legal)


def _legal(node: Node) -> Node | None:
    if len(node.types) == 1 and not node.type.size and node.op in _EMPTIED:
        return build.constant(np.empty(node.shape, node.dtype.numpy))
    rule = RULES.get(node.op)
    return None if rule is None else rule(node)


# Whatever computes nothing is a constant without elements; calls may have effects, though.
_EMPTIED = frozenset(Op) - CALLS - CONTROL - Group.COLLECTIVE - Group.LEAF - {Op.GET}


def splat(value: object, type_: TensorType) -> Node:
    """A tensor filled with a NumPy scalar of the type."""
    scalar = build.constant(np.asarray(value, type_.dtype.numpy))
    return build.broadcast_in_dim(scalar, type_.shape, ()) if type_.shape else scalar


def _elementwise(node: Node) -> Node | None:
    if is_supported(node):
        return None
    return call_elementwise(node)


# ---- reductions -------------------------------------------------------------------------------


def _reduce(node: Node) -> Node | None:
    (x,) = node.srcs
    kind, dims = node["kind"], node["dims"]
    if not x.type.size:
        return splat(neutral(kind, node.dtype), node.type)
    length = math.prod(x.shape[d] for d in dims)
    if length == 1:
        return build.alone(build.reshape(x, node.shape), kind)
    if x.dtype is DType.PRED and kind in ("min", "max"):
        return _reduced(x, "and" if kind == "min" else "or", dims)
    if kind in SUMS and x.dtype in NARROW:
        return build.convert(_reduced(build.convert(x, DType.F32), kind, dims), node.dtype)
    parts = _parts(x, dims)
    return None if parts is None else _in_parts(x, kind, dims, *parts)


def _reduced(x: Node, kind: str, dims: tuple[int, ...]) -> Node:
    node = build.reduce(x, kind, dims)
    return _reduce(node) or node


def is_divided(node: Node) -> bool:
    """Whether a reduction is done in parts, whose results are reduced then."""
    return _parts(node.srcs[0], node["dims"]) is not None


def _parts(x: Node, dims: tuple[int, ...]) -> tuple[int, int] | None:
    """How a reduction is divided: a dimension, and the number of parts of it."""
    results = math.prod(n for d, n in enumerate(x.shape) if d not in dims)
    length = x.type.size // results
    # Rows are shared out as they are; columns only if they make some vectors for each thread.
    by_rows = x.type.rank - 1 in dims
    if x.type.size < 2 * LONG or results >= (2 * PARTS if by_rows else FEW):
        return None
    wanted = min(PARTS, max(2, x.type.size // LONG), length // 2)
    dim = max(dims, key=lambda d: (x.shape[d] >= wanted, -d))
    extent = x.shape[dim]
    count = max((c for c in range(1, min(extent, 2 * wanted) + 1) if extent % c == 0), default=1)
    if count > 1 and count * 2 >= wanted:
        return dim, count
    return dim, min(wanted, extent)  # does not divide: the last part is shorter


def _in_parts(x: Node, kind: str, dims: tuple[int, ...], dim: int, count: int) -> Node:
    extent = x.shape[dim]
    length = -(-extent // count)
    if length * count != extent:
        high = [length * count - extent if d == dim else 0 for d in range(x.type.rank)]
        fill = splat(neutral(kind, x.dtype), TensorType(x.dtype))
        x = build.pad(x, fill, (0,) * x.type.rank, high)
    shape = (*x.shape[:dim], count, length, *x.shape[dim + 1 :])
    moved = tuple(d + (d >= dim) for d in dims)
    partial = build.reduce(build.reshape(x, shape), kind, moved)
    return build.reduce(partial, kind, dim - sum(d < dim for d in dims))


def _arg_reduce(node: Node) -> Node | None:
    (x,) = node.srcs
    if x.shape[node["dim"]] == 1:
        return build.constant(0, node.dtype, node.shape)
    return None


def _reduce_window(node: Node) -> Node | None:
    (x,) = node.srcs
    if not x.type.size:
        return splat(neutral(node["kind"], node.dtype), node.type)
    if math.prod(node["window"]) == 1:
        fill = splat(neutral(node["kind"], node.dtype), TensorType(x.dtype))
        holes = [dilation - 1 for dilation in node["base_dilation"]]
        padded = build.pad(x, fill, node["low"], node["high"], holes)
        steps = node["strides"]
        limits = [(n - 1) * step + 1 for n, step in zip(node.shape, steps, strict=True)]
        taken = build.slice_(padded, (0,) * x.type.rank, limits, steps)
        return build.alone(taken, node["kind"])
    if node["kind"] in SUMS and x.dtype in NARROW:
        wide = build.convert(x, DType.F32)
        type_ = TensorType(DType.F32, node.shape)
        return build.convert(Node.make(node.op, type_, (wide,), node.attrs), node.dtype)
    return None


# ---- movement ---------------------------------------------------------------------------------


def _concatenate(node: Node) -> Node | None:
    filled = [src for src in node.srcs if src.type.size]
    if len(filled) == len(node.srcs) or not filled:
        return None
    return build.concatenate(filled, node["dim"])


def _pad(node: Node) -> Node | None:
    x, fill = node.srcs
    return None if x.type.size else build.broadcast_in_dim(fill, node.shape, ())


def _update(node: Node) -> Node | None:
    """Nothing is put anywhere, or what has been there."""
    if not value(node).type.size or unchanged(node):
        return node.srcs[0]
    return None


# ---- products ---------------------------------------------------------------------------------


def _dot(node: Node) -> Node | None:
    lhs, rhs = node.srcs
    if not lhs.type.size:
        return splat(node.dtype.numpy.type(0), node.type)
    if lhs.dtype in FLOATS8:  # bfloat16 holds them exactly
        operands = (build.convert(lhs, DType.BF16), build.convert(rhs, DType.BF16))
        return Node.make(node.op, node.types, operands, node.attrs)
    if lhs.dtype in GEMM:
        return None
    if lhs.dtype is not node.dtype:
        lhs, rhs = build.convert(lhs, node.dtype), build.convert(rhs, node.dtype)
        wide = Node.make(node.op, node.types, (lhs, rhs), node.attrs)
        return _dot(wide) or wide
    length = math.prod(lhs.shape[d] for d in node["lhs_contract"])
    if node.dtype.is_integer or node.type.size * length <= SMALL:
        return _dot_as_loop(node)
    return calls.batched_product(node)


def _dot_as_loop(node: Node) -> Node:
    """Multiply and sum over a space of all dimensions: batch, rows, columns, contracted."""
    lhs, rhs = node.srcs
    batch, contract = len(node["lhs_batch"]), len(node["lhs_contract"])
    rows = lhs.type.rank - batch - contract
    rank = node.type.rank + contract
    shape = (*node.shape, *(lhs.shape[d] for d in node["lhs_contract"]))
    last = range(node.type.rank, rank)

    def spread(x: Node, side: str, free: range) -> Node:
        lead, tail = node[f"{side}_batch"], node[f"{side}_contract"]
        middle = [d for d in range(x.type.rank) if d not in lead and d not in tail]
        ordered = build.transpose(x, (*lead, *middle, *tail))
        return build.broadcast_in_dim(ordered, shape, (*range(batch), *free, *last))

    left = spread(lhs, "lhs", range(batch, batch + rows))
    right = spread(rhs, "rhs", range(batch + rows, node.type.rank))
    product = build.multiply(left, right)
    if math.prod(shape[node.type.rank :]) == 1:
        return build.alone(build.reshape(product, node.shape), "add")
    return _reduced(product, "add", tuple(last))


RULES: dict[Op, Rule] = {
    **dict.fromkeys(Group.COLLECTIVE, collective),
    **dict.fromkeys(Group.ELEMENTWISE, _elementwise),
    Op.REDUCE: _reduce,
    Op.ARG_REDUCE: _arg_reduce,
    Op.REDUCE_WINDOW: _reduce_window,
    Op.CONCATENATE: _concatenate,
    Op.PAD: _pad,
    Op.SCATTER: _update,
    Op.DYNAMIC_UPDATE_SLICE: _update,
    Op.DOT_GENERAL: _dot,
    Op.CONVOLUTION: calls.convolution,
    Op.CUMULATIVE: calls.cumulative,
    Op.SELECT_AND_SCATTER: calls.select_and_scatter,
    Op.SORT: calls.sort,
    Op.GET: calls.result,
}
