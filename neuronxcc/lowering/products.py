"""The geometry of matrix products: tensors of many dimensions as batches of matrices."""

from __future__ import annotations

from neuronxcc.ir.node import Node
from neuronxcc.lowering.layout import Layout, Strides, collapsed, contiguous


def roles(dot: Node, side: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of an operand that are batch, rows (columns, of the right one), contracted."""
    batch = dot["rhs_batch" if side else "lhs_batch"]
    contract = dot["rhs_contract" if side else "lhs_contract"]
    rank = dot.srcs[side].type.rank
    free = tuple(d for d in range(rank) if d not in batch and d not in contract)
    return batch, free, contract


def packed(dot: Node, side: int) -> Strides:
    """Dense strides of an operand in the order batch, rows, columns of the matrix."""
    batch, free, contract = roles(dot, side)
    order = (*batch, *contract, *free) if side else (*batch, *free, *contract)
    shape = dot.srcs[side].shape
    strides = dict(zip(order, contiguous([shape[d] for d in order]), strict=True))
    return tuple(strides[d] for d in range(len(shape)))


def matrix(dot: Node, side: int, layout: Layout) -> tuple[int, int, int] | None:
    """Strides along batch, free and contracted dimensions, each taken together; None if none."""
    shape = dot.srcs[side].shape
    found = []
    for dims in roles(dot, side):
        stride = collapsed([shape[d] for d in dims], [layout.strides[d] for d in dims])
        if stride is None:
            return None
        found.append(stride)
    return found[0], found[1], found[2]
