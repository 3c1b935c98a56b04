"""Collectives in the form that programs have: along dimension 0, of real numbers, in groups."""

from __future__ import annotations

from typing import Any

from neuronxcc.ir import build
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.errors import LoweringUnsupportedError

# A sum of complex numbers is that of their parts; a product is not.
_BY_PARTS = ("add", "avg")


def collective(node: Node) -> Node | None:
    """The rewritten collective; None if it has the form already."""
    (x,) = node.srcs
    group = node.get("group")
    if group and len(group[0]) == 1:
        return build.reshape(x, node.shape)  # nobody else
    if node.op is Op.COLLECTIVE_PERMUTE and all(pair == (0, 0) for pair in node["pairs"]):
        return None if node.get("name") else x
    if not node.get("name"):
        raise LoweringUnsupportedError(
            node,
            "it names no process group to do it",
            "Give it a name, or keep it out of compiled functions",
        )
    if node.dtype.is_complex:
        return _of_parts(node)
    move = _MOVES.get(node.op)
    return None if move is None else move(node)


def _again(node: Node, x: Node, **changes: Any) -> Node:
    """The same collective of another tensor."""
    again: Node = _BUILDERS[node.op](x, **{**node.attrs, **changes})
    return again


_BUILDERS: dict[Op, Any] = {
    Op.ALL_REDUCE: build.all_reduce,
    Op.ALL_GATHER: build.all_gather,
    Op.REDUCE_SCATTER: build.reduce_scatter,
    Op.ALL_TO_ALL: build.all_to_all,
    Op.COLLECTIVE_BROADCAST: build.collective_broadcast,
    Op.COLLECTIVE_PERMUTE: build.collective_permute,
}


def _of_parts(node: Node) -> Node:
    if node.get("kind", "add") not in _BY_PARTS:
        raise LoweringUnsupportedError(
            node, f"complex numbers have no {node['kind']} between ranks", "Reduce them by sums"
        )
    (x,) = node.srcs
    rank = x.type.rank
    # A last dimension leaves the numbers of the others as they are; one in front of a scalar.
    parts = build.stack([build.real(x), build.imag(x)], rank)
    done = _again(node, parts)
    done = collective(done) or done
    real, imag = (
        build.reshape(
            build.slice_(done, (0,) * rank + (i,), (*done.shape[:-1], i + 1)), done.shape[:-1]
        )
        for i in range(2)
    )
    return build.complex_(real, imag)


def _gather(node: Node) -> Node | None:
    dim, (x,) = node["dim"], node.srcs
    if dim == 0:
        return None
    gathered = _again(node, build.expand_dims(x, 0), dim=0)
    return _joined(gathered, dim, node)


def _joined(parts: Node, dim: int, node: Node) -> Node:
    """Tensors that lie one after the other, joined along a dimension."""
    order = (*range(1, dim + 1), 0, *range(dim + 1, parts.type.rank))
    return build.reshape(build.transpose(parts, order), node.shape)


def _parted(x: Node, dim: int, count: int) -> Node:
    """A tensor cut into parts along a dimension, one after the other."""
    shape = (*x.shape[:dim], count, x.shape[dim] // count, *x.shape[dim + 1 :])
    order = (dim, *(d for d in range(len(shape)) if d != dim))
    return build.transpose(build.reshape(x, shape), order)


def _scatter(node: Node) -> Node | None:
    dim, (x,) = node["dim"], node.srcs
    if dim == 0:
        return None
    parts = _parted(x, dim, len(node["group"][0]))
    return build.reshape(_again(node, parts, dim=0), node.shape)


def _all_to_all(node: Node) -> Node | None:
    split, concat, (x,) = node["split_dim"], node["concat_dim"], node.srcs
    if split == concat == 0:
        return None
    parts = _parted(x, split, len(node["group"][0]))
    return _joined(_again(node, parts, split_dim=0, concat_dim=0), concat, node)


_MOVES = {Op.ALL_GATHER: _gather, Op.REDUCE_SCATTER: _scatter, Op.ALL_TO_ALL: _all_to_all}
