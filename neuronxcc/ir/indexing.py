"""Builders of gathers and scatters: XLA's general forms, and the few shapes that programs use.

Indices of these helpers must be in range already: gather clamps what is not, scatter leaves it out.
`wrap` turns Python's negative indices into positive ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir import build
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError


def gather(
    x: Node,
    indices: Node,
    *,
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    start_index_map: Sequence[int],
    slice_sizes: Sequence[int],
    index_vector_dim: int | None = None,
    operand_batching_dims: Sequence[int] = (),
    start_indices_batching_dims: Sequence[int] = (),
) -> Node:
    """XLA's gather. Starts are clamped so that slices lie inside.

    `index_vector_dim` None is the last dimension of the indices.
    """
    vector = indices.type.rank - 1 if index_vector_dim is None else index_vector_dim
    return build.make(
        Op.GATHER,
        (x, indices),
        offset_dims=tuple(offset_dims),
        collapsed_slice_dims=tuple(collapsed_slice_dims),
        start_index_map=tuple(start_index_map),
        slice_sizes=tuple(slice_sizes),
        index_vector_dim=vector,
        operand_batching_dims=tuple(operand_batching_dims),
        start_indices_batching_dims=tuple(start_indices_batching_dims),
    )


def scatter(
    x: Node,
    indices: Node,
    updates: Node,
    *,
    kind: str,
    update_window_dims: Sequence[int],
    inserted_window_dims: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    index_vector_dim: int | None = None,
    input_batching_dims: Sequence[int] = (),
    scatter_indices_batching_dims: Sequence[int] = (),
    unique: bool = False,
) -> Node:
    """XLA's scatter; kind is set, add, mul, min or max.

    A window that does not lie inside is left out. Updates of one element are combined in the order
    of the indices, in the element's type; the last one stays for kind "set".

    Args:
        x: Operand.
        indices: Of an integer type.
        updates: Windows, of the operand's type.
        kind: How an update is combined with what is there.
        update_window_dims: As in XLA.
        inserted_window_dims: As in XLA.
        scatter_dims_to_operand_dims: As in XLA.
        index_vector_dim: None is the last dimension of the indices.
        input_batching_dims: As in XLA.
        scatter_indices_batching_dims: As in XLA.
        unique: Promises that no element is updated twice, so the order does not matter.
    """
    vector = indices.type.rank - 1 if index_vector_dim is None else index_vector_dim
    return build.make(
        Op.SCATTER,
        (x, indices, updates),
        kind=kind,
        update_window_dims=tuple(update_window_dims),
        inserted_window_dims=tuple(inserted_window_dims),
        scatter_dims_to_operand_dims=tuple(scatter_dims_to_operand_dims),
        index_vector_dim=vector,
        input_batching_dims=tuple(input_batching_dims),
        scatter_indices_batching_dims=tuple(scatter_indices_batching_dims),
        unique=unique,
    )


def wrap(indices: Node, extent: int) -> Node:
    """Add `extent` to negative indices, as Python counts them."""
    negative = build.less(indices, 0)
    return build.select(negative, build.add(indices, extent), indices)


def _empty(x: Node, shape: tuple[int, ...]) -> Node:
    """Nothing taken, possibly from a dimension that has nothing: no gather can say that."""
    return build.splat(0, TensorType(x.dtype, shape))


def take(x: Node, indices: Node, dim: int) -> Node:
    """Index one dimension with a tensor of any shape (index_select, embedding).

    The result has the shape of `x` with `dim` replaced by the shape of the indices.
    """
    dim = build.axis(Op.GATHER, dim, x.type.rank)
    count = indices.type.rank
    shape = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    if 0 in shape:
        return _empty(x, shape)
    offset = [d if d < dim else d - 1 + count for d in range(x.type.rank) if d != dim]
    return gather(
        x,
        indices,
        offset_dims=offset,
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        slice_sizes=[1 if d == dim else n for d, n in enumerate(x.shape)],
        index_vector_dim=count,
    )


def put(
    x: Node, indices: Node, updates: Node, dim: int, kind: str, *, unique: bool = False
) -> Node:
    """Write along one dimension (index_copy: "set", index_add: "add"); inverse of `take`.

    `updates` has the shape of `x` with `dim` replaced by the shape of the indices.
    """
    dim = build.axis(Op.SCATTER, dim, x.type.rank)
    count = indices.type.rank
    window = [d if d < dim else d - 1 + count for d in range(x.type.rank) if d != dim]
    return scatter(
        x,
        indices,
        updates,
        kind=kind,
        update_window_dims=window,
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        index_vector_dim=count,
        unique=unique,
    )


def take_along(x: Node, indices: Node, dim: int) -> Node:
    """out[i, j, k] = x[i, indices[i, j, k], k] for dim 1 (torch.gather, take_along_axis).

    The other extents of the indices may be smaller than those of `x`.
    """
    dim = build.axis(Op.GATHER, dim, x.type.rank)
    others = _others(Op.GATHER, x, indices, dim)
    if 0 in indices.shape:
        return _empty(x, indices.shape)
    x = build.slice_(
        x,
        [0] * x.type.rank,
        [n if d == dim else indices.shape[d] for d, n in enumerate(x.shape)],
    )
    return gather(
        x,
        indices,
        offset_dims=(),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
        slice_sizes=(1,) * x.type.rank,
        index_vector_dim=x.type.rank,
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )


def put_along(x: Node, indices: Node, updates: Node, dim: int, kind: str) -> Node:
    """x[i, indices[i, j, k], k] = updates[i, j, k] for dim 1 (torch.scatter, scatter_reduce).

    Indices and updates have one shape, whose other extents may be smaller than those of `x`.
    """
    rank = x.type.rank
    dim = build.axis(Op.SCATTER, dim, rank)
    others = _others(Op.SCATTER, x, indices, dim)
    if any(indices.shape[d] != x.shape[d] for d in others):
        # No batching dimensions then: the index of every other dimension is its own position.
        places = [
            indices if d == dim else build.iota(indices.dtype, indices.shape, d)
            for d in range(rank)
        ]
        return put_nd(x, build.stack(places, rank), updates, range(rank), kind)
    return scatter(
        x,
        indices,
        updates,
        kind=kind,
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        index_vector_dim=rank,
        input_batching_dims=others,
        scatter_indices_batching_dims=others,
    )


def _others(op: Op, x: Node, indices: Node, dim: int) -> tuple[int, ...]:
    others = tuple(d for d in range(x.type.rank) if d != dim)
    if indices.type.rank != x.type.rank or any(indices.shape[d] > x.shape[d] for d in others):
        raise ShapeError(op, f"indices {indices.type} along {dim} of {x.type}; extents too large")
    return others


def take_nd(x: Node, indices: Node, dims: Sequence[int]) -> Node:
    """Index several dimensions at once; the last dimension of the indices holds one per `dims`.

    The result has the leading dimensions of the indices, then the other dimensions of `x`.
    """
    where = build.axes(Op.GATHER, tuple(dims), x.type.rank)
    lead = indices.type.rank - 1
    kept = [d for d in range(x.type.rank) if d not in where]
    shape = (*indices.shape[:-1], *(x.shape[d] for d in kept))
    if 0 in shape:
        return _empty(x, shape)
    return gather(
        x,
        indices,
        offset_dims=range(lead, lead + len(kept)),
        collapsed_slice_dims=sorted(where),
        start_index_map=where,
        slice_sizes=[1 if d in where else n for d, n in enumerate(x.shape)],
    )


def put_nd(
    x: Node,
    indices: Node,
    updates: Node,
    dims: Sequence[int],
    kind: str,
    *,
    unique: bool = False,
) -> Node:
    """Write at several dimensions at once (index_put); inverse of `take_nd`.

    `updates` has the leading dimensions of the indices, then the other dimensions of `x`.
    """
    where = build.axes(Op.SCATTER, tuple(dims), x.type.rank)
    lead = indices.type.rank - 1
    kept = x.type.rank - len(where)
    return scatter(
        x,
        indices,
        updates,
        kind=kind,
        update_window_dims=range(lead, lead + kept),
        inserted_window_dims=sorted(where),
        scatter_dims_to_operand_dims=where,
        unique=unique,
    )
