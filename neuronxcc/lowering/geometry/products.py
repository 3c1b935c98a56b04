"""The geometry of matrix products: tensors of many dimensions as batches of matrices."""

from __future__ import annotations

import math

from neuronxcc.ir.node import Node
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import Index, Space
from neuronxcc.lowering.geometry.layout import Layout, Strides, collapsed, contiguous, viewed


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


def shown_strides(node: Node, base: Node) -> Strides | None:
    """Strides of a chain of views if `base` lay densely; None if they are no strides."""
    chain = []
    while node is not base:
        chain.append(node)
        (node,) = node.srcs
    layout: Layout | None = Layout(contiguous(base.shape))
    for view in reversed(chain):
        layout = None if layout is None else viewed(view, layout)
    return None if layout is None else layout.strides


def frame(dot: Node, side: int, strides: Strides) -> tuple[bool, dict[int, int], tuple[Index, ...]]:
    """The axes over which an operand with such strides is made.

    Returns:
        Whether the rows of these axes are columns of the matrix; the extents of batch, rows and
        columns; and the position of each of the operand's dimensions in terms of them.
    """
    shape = dot.srcs[side].shape
    batch, free, contract = roles(dot, side)
    found = matrix(dot, side, Layout(strides))
    assert found is not None
    # Neighbours in memory are neighbours in a row, if there is any choice.
    along = math.prod(shape[d] for d in contract) > 1 and found[2] == 1
    groups = (batch, free, contract) if along else (batch, contract, free)
    extents = {axis: math.prod(shape[d] for d in dims) for axis, dims in enumerate(groups)}
    space = Space(extents, splittable=False)
    coords = [ix.ZERO] * len(shape)
    for axis, dims in enumerate(groups):
        flat = ix.ZERO if extents[axis] == 1 else ix.of_axis(axis)
        positions = ix.unflatten(flat, [shape[d] for d in dims], space)
        for d, position in zip(dims, positions, strict=True):
            coords[d] = position
    return along == bool(side), extents, tuple(coords)
