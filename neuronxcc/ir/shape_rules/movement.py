"""Rules of operators that move elements."""

from __future__ import annotations

import math
from typing import Any

from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    INTEGERS,
    SCATTER_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
    check_dims,
    check_dtype,
    check_ints,
    check_kind,
    check_shape,
    scalar_starts,
)
from neuronxcc.ir.shape_rules.contraction import dilated


def broadcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Dimensions keep their order and their extent, or grow from 1."""
    arity(op, types, 1)
    x, shape = types[0], check_shape(op, attrs["shape"])
    dims = check_dims(op, "dims", attrs["dims"], len(shape))
    fits = len(dims) == x.rank and list(dims) == sorted(dims)
    if not fits or any(n not in (1, shape[d]) for n, d in zip(x.shape, dims, strict=True)):
        raise ShapeError(
            op,
            f"{x} to {list(shape)} with dims {dims}; needs one increasing dimension per operand "
            "dimension, of equal extent unless the operand's is 1",
        )
    return (TensorType(x.dtype, shape),)


def reshape_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The number of elements stays."""
    arity(op, types, 1)
    x, shape = types[0], check_shape(op, attrs["shape"])
    if math.prod(shape) != x.size:
        raise ShapeError(op, f"{x} to {list(shape)}; the number of elements must stay {x.size}")
    return (TensorType(x.dtype, shape),)


def transpose_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Every dimension once."""
    arity(op, types, 1)
    (x,) = types
    permutation = check_dims(op, "permutation", attrs["permutation"], x.rank)
    if len(permutation) != x.rank:
        raise ShapeError(op, f"permutation {permutation} of {x}; must name every dimension")
    return (TensorType(x.dtype, tuple(x.shape[d] for d in permutation)),)


def slice_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The window lies inside."""
    arity(op, types, 1)
    (x,) = types
    starts = check_ints(op, "starts", attrs["starts"], x.rank, 0)
    limits = check_ints(op, "limits", attrs["limits"], x.rank, 0)
    strides = check_ints(op, "strides", attrs["strides"], x.rank, 1)
    if any(not a <= b <= n for a, b, n in zip(starts, limits, x.shape, strict=True)):
        raise ShapeError(op, f"[{starts}, {limits}) of {x}; needs 0 <= start <= limit <= extent")
    shape = (-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    return (TensorType(x.dtype, tuple(shape)),)


def pad_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The value is a scalar of the operand's type; no extent gets negative."""
    arity(op, types, 2)
    x, value = types
    if value != TensorType(x.dtype):
        raise ShapeError(op, f"value {value}; must be a scalar of type {x.dtype.value}")
    low = check_ints(op, "low", attrs["low"], x.rank)
    high = check_ints(op, "high", attrs["high"], x.rank)
    interior = check_ints(op, "interior", attrs["interior"], x.rank, 0)
    edges = zip(x.shape, low, high, interior, strict=True)
    shape = tuple(a + dilated(n, i + 1) + b for n, a, b, i in edges)
    if any(n < 0 for n in shape):
        raise ShapeError(op, f"low {low}, high {high} of {x} give extents {shape}")
    return (TensorType(x.dtype, shape),)


def concatenate_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Operands differ in one dimension only."""
    if not types:
        raise ShapeError(op, "takes at least one operand")
    first = types[0]
    dim = check_dim(op, attrs, first.rank)

    def others(t: TensorType) -> tuple[Any, ...]:
        return (t.dtype, t.rank, t.shape[:dim], t.shape[dim + 1 :])

    if any(others(t) != others(first) for t in types):
        listed = ", ".join(map(str, types))
        raise ShapeError(op, f"({listed}) along {dim}; may differ in that dimension only")
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in types), *first.shape[dim + 1 :])
    return (TensorType(first.dtype, shape),)


def reverse_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Distinct dimensions."""
    arity(op, types, 1)
    check_dims(op, "dims", attrs["dims"], types[0].rank)
    return types


def dynamic_slice_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The window is no larger than the operand."""
    x, *starts = types
    scalar_starts(op, tuple(starts), x.rank)
    sizes = check_ints(op, "sizes", attrs["sizes"], x.rank, 0)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(op, f"sizes {sizes} of {x}; may not exceed the extents")
    return (TensorType(x.dtype, sizes),)


def dynamic_update_slice_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """The update is no larger than the operand."""
    x, update, *starts = types
    scalar_starts(op, tuple(starts), x.rank)
    fits = update.dtype == x.dtype and update.rank == x.rank
    if not fits or any(size > n for size, n in zip(update.shape, x.shape, strict=True)):
        raise ShapeError(op, f"update {update} of {x}; same type and rank, no larger extents")
    return (x,)


def index_shape(op: Op, indices: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], int]:
    """Split the shape of the indices of a gather or scatter.

    Returns the shape without the index vector, and the length of the index vector (1 if
    `index_vector_dim` is the rank: an implied dimension).
    """
    check_dtype(op, indices.dtype, INTEGERS, "indices")
    dim = attrs["index_vector_dim"]
    if not isinstance(dim, int) or not 0 <= dim <= indices.rank:
        raise ShapeError(op, f"index_vector_dim {dim}; must be in [0, {indices.rank}]")
    length = indices.shape[dim] if dim < indices.rank else 1
    return (*indices.shape[:dim], *indices.shape[dim + 1 :]), length


def _batching(
    op: Op, x: TensorType, indices: TensorType, attrs: Attrs, names: tuple[str, str]
) -> tuple[int, ...]:
    of_x = check_dims(op, names[0], attrs[names[0]], x.rank)
    of_indices = check_dims(op, names[1], attrs[names[1]], indices.rank)
    if len(of_x) != len(of_indices) or attrs["index_vector_dim"] in of_indices:
        raise ShapeError(op, f"{names[0]} {of_x} and {names[1]} {of_indices} do not pair up")
    if any(x.shape[a] != indices.shape[b] for a, b in zip(of_x, of_indices, strict=True)):
        raise ShapeError(op, f"{names[0]} {of_x} of {x} must have the extents of {indices}'s")
    return of_x


def gather_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """XLA's rule: windows at the offset dimensions, indices at the others."""
    arity(op, types, 2)
    x, indices = types
    batch, length = index_shape(op, indices, attrs)
    sizes = check_ints(op, "slice_sizes", attrs["slice_sizes"], x.rank, 0)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(op, f"slice_sizes {sizes} of {x}; may not exceed the extents")
    collapsed = check_dims(op, "collapsed_slice_dims", attrs["collapsed_slice_dims"], x.rank)
    names = ("operand_batching_dims", "start_indices_batching_dims")
    batching = _batching(op, x, indices, attrs, names)
    start_map = check_dims(op, "start_index_map", attrs["start_index_map"], x.rank)
    if len(start_map) != length:
        raise ShapeError(op, f"start_index_map {start_map}; indices hold {length} per slice")
    dropped = {*collapsed, *batching}
    if len(dropped) != len(collapsed) + len(batching) or any(sizes[d] != 1 for d in dropped):
        raise ShapeError(op, f"dims {sorted(dropped)} must be distinct and of slice size 1")
    if set(start_map) & set(batching):
        raise ShapeError(op, f"start_index_map {start_map} overlaps batching dims {batching}")
    window = [sizes[d] for d in range(x.rank) if d not in dropped]
    rank = len(batch) + len(window)
    offset = check_dims(op, "offset_dims", attrs["offset_dims"], rank)
    if len(offset) != len(window) or list(offset) != sorted(offset):
        raise ShapeError(op, f"offset_dims {offset}; must be {len(window)} increasing dimensions")
    rest = iter(batch)
    kept = dict(zip(offset, window, strict=True))
    return (TensorType(x.dtype, tuple(kept[d] if d in kept else next(rest) for d in range(rank))),)


def scatter_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """XLA's rule: updates are shaped as the result of the matching gather."""
    arity(op, types, 3)
    x, indices, updates = types
    check_kind(op, attrs, SCATTER_KINDS, x.dtype)
    batch, length = index_shape(op, indices, attrs)
    inserted = check_dims(op, "inserted_window_dims", attrs["inserted_window_dims"], x.rank)
    names = ("input_batching_dims", "scatter_indices_batching_dims")
    batching = _batching(op, x, indices, attrs, names)
    target = check_dims(
        op, "scatter_dims_to_operand_dims", attrs["scatter_dims_to_operand_dims"], x.rank
    )
    if len(target) != length:
        raise ShapeError(
            op, f"scatter_dims_to_operand_dims {target}; indices hold {length} per window"
        )
    dropped = {*inserted, *batching}
    if len(dropped) != len(inserted) + len(batching) or set(target) & set(batching):
        raise ShapeError(op, f"dims {inserted}, {batching}, {target} overlap")
    window = check_dims(op, "update_window_dims", attrs["update_window_dims"], updates.rank)
    kept = [d for d in range(x.rank) if d not in dropped]
    scattered = tuple(n for d, n in enumerate(updates.shape) if d not in window)
    fits = updates.dtype == x.dtype and len(window) == len(kept) and list(window) == sorted(window)
    if not fits or scattered != batch:
        raise ShapeError(
            op,
            f"updates {updates} with update_window_dims {window}; need {len(kept)} increasing "
            f"window dimensions, type {x.dtype.value}, and the other dimensions {list(batch)}",
        )
    if any(updates.shape[w] > x.shape[d] for w, d in zip(window, kept, strict=True)):
        raise ShapeError(op, f"windows of {updates} are larger than {x}")
    return (x,)
