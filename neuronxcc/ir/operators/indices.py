"""Operators that find their elements by indices: windows anywhere, gather and scatter as in XLA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import COMBINE, Array, arithmetic, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    INTEGERS,
    SCATTER_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dims,
    check_dtype,
    check_ints,
    check_kind,
    scalar_starts,
)
from neuronxcc.ir.operators.definition import (
    IN_F32,
    WIDE,
    Case,
    Cost,
    Gap,
    Kind,
    Operator,
    names,
    takes,
    tensor,
)
from neuronxcc.targets import Engine

Window = tuple[slice, ...]

_X = tensor(DType.F32, 3, 4, 5)  # of cases


def _window(x: Array, starts: Any, sizes: Any) -> Window:
    """A window whose starts are clamped so that it lies inside."""
    clamped = [
        min(max(int(s), 0), n - size) for s, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(s, s + size) for s, size in zip(clamped, sizes, strict=True))


# ---- dynamic_slice: x, one scalar start per dimension -------------------------------------------


def dynamic_slice_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The window is no larger than the operand."""
    x, *starts = types
    scalar_starts(op, tuple(starts), x.rank)
    sizes = check_ints(op, "sizes", attrs["sizes"], x.rank, 0)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(op, f"sizes {sizes} of {x}; may not exceed the extents")
    return (TensorType(x.dtype, sizes),)


DYNAMIC_SLICE = Operator(
    op=Op.DYNAMIC_SLICE,
    kind=Kind.MOVEMENT,
    engine=Engine.DMA,
    cost=Cost.BYTES,
    attrs=names("sizes"),
    rule=dynamic_slice_rule,
    meaning=lambda node, x, *starts: x[_window(x, starts, node["sizes"])],
    cases=lambda: (Case("", (_X, *[tensor(DType.S64)] * 3), {"sizes": (2, 2, 3)}),),
    complex=True,
)

# ---- dynamic_update_slice: x, update, one scalar start per dimension ----------------------------


def dynamic_update_slice_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """The update is no larger than the operand."""
    x, update, *starts = types
    scalar_starts(op, tuple(starts), x.rank)
    fits = update.dtype == x.dtype and update.rank == x.rank
    if not fits or any(size > n for size, n in zip(update.shape, x.shape, strict=True)):
        raise ShapeError(op, f"update {update} of {x}; same type and rank, no larger extents")
    return (x,)


def _update_slice(_node: Node, x: Array, update: Array, *starts: Array) -> Array:
    result = x.copy()
    result[_window(x, starts, update.shape)] = update
    return result


DYNAMIC_UPDATE_SLICE = Operator(
    op=Op.DYNAMIC_UPDATE_SLICE,
    kind=Kind.MOVEMENT,
    engine=Engine.DMA,
    cost=Cost.BYTES,
    rule=dynamic_update_slice_rule,
    meaning=_update_slice,
    cases=lambda: (Case("", (_X, tensor(DType.F32, 2, 2, 3), *[tensor(DType.S64)] * 3)),),
    complex=True,
)

# ---- what gather and scatter share --------------------------------------------------------------


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


def _batches(
    node: Node, indices: Array, mapped: str, batching: str, of_indices: str
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Every position of the indices (without the index vector) with its start in the operand.

    The last three are the names of the attributes, which differ between gather and scatter.
    """
    vector_dim = node["index_vector_dim"]
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    vectors = np.moveaxis(indices, vector_dim, -1)
    # A batching dimension's place among the dimensions without the index vector.
    places = [d - (d > vector_dim) for d in node[of_indices]]
    for position in np.ndindex(vectors.shape[:-1]):
        start = [0] * node.srcs[0].type.rank
        for dim, value in zip(node[mapped], vectors[position], strict=True):
            start[dim] = int(value)
        for dim, place in zip(node[batching], places, strict=True):
            start[dim] = position[place]
        yield position, start


def _beyond(node: Node) -> bool:
    """Indices counted by an iota that runs past the operand's dimension."""
    x, indices = node.srcs[0], node.srcs[1]
    name = "start_index_map" if node.op is Op.GATHER else "scatter_dims_to_operand_dims"
    if indices.op is not Op.IOTA or len(node[name]) != 1:
        return False
    return bool(indices.shape[indices["dim"]] > x.shape[node[name][0]])


# ---- gather: x, indices -------------------------------------------------------------------------


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


def gather(node: Node, x: Array, indices: Array) -> Array:
    """GATHER."""
    result = np.empty(node.shape, x.dtype)
    offset = node["offset_dims"]
    dropped = {*node["collapsed_slice_dims"], *node["operand_batching_dims"]}
    batch_dims = [d for d in range(result.ndim) if d not in offset]
    for position, start in _batches(
        node, indices, "start_index_map", "operand_batching_dims", "start_indices_batching_dims"
    ):
        window = x[_window(x, start, node["slice_sizes"])]
        where: list[int | slice] = [slice(None)] * result.ndim
        for dim, place in zip(batch_dims, position, strict=True):
            where[dim] = place
        kept = [n for d, n in enumerate(window.shape) if d not in dropped]
        result[tuple(where)] = window.reshape(kept)
    return result


def _gathers() -> Iterable[Case]:
    """Along one dimension, batched, and by vectors of two indices."""
    plain: dict[str, Any] = {"operand_batching_dims": (), "start_indices_batching_dims": ()}
    yield Case(
        "take",
        (_X, tensor(DType.S32, 2, 3)),
        {
            **plain,
            "offset_dims": (0, 3),
            "collapsed_slice_dims": (1,),
            "start_index_map": (1,),
            "slice_sizes": (3, 1, 5),
            "index_vector_dim": 2,
        },
    )
    yield Case(
        "along",
        (_X, tensor(DType.S64, 3, 2, 5)),
        {
            "operand_batching_dims": (0, 2),
            "start_indices_batching_dims": (0, 2),
            "offset_dims": (),
            "collapsed_slice_dims": (1,),
            "start_index_map": (1,),
            "slice_sizes": (1, 1, 1),
            "index_vector_dim": 3,
        },
    )
    yield Case(
        "nd",
        (_X, tensor(DType.S32, 4, 2)),
        {
            **plain,
            "offset_dims": (1,),
            "collapsed_slice_dims": (0, 2),
            "start_index_map": (2, 0),
            "slice_sizes": (1, 4, 1),
            "index_vector_dim": 1,
        },
    )


GATHER = Operator(
    op=Op.GATHER,
    kind=Kind.MOVEMENT,
    engine=Engine.DMA,
    cost=Cost.BYTES,
    attrs=names(
        "offset_dims collapsed_slice_dims start_index_map slice_sizes index_vector_dim "
        "operand_batching_dims start_indices_batching_dims"
    ),
    rule=gather_rule,
    meaning=gather,
    cases=_gathers,
    gaps=(
        Gap(
            "NCC_EVRF056",
            _beyond,
            says="gather encountered out of bound indices: those of an iota run beyond the "
            "operand's dimension",
        ),
    ),
)

# ---- scatter: x, indices, updates ---------------------------------------------------------------


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


def scatter(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    """SCATTER. A window that does not lie inside is left out."""
    result = x.copy()
    window_dims = node["update_window_dims"]
    dropped = {*node["inserted_window_dims"], *node["input_batching_dims"]}
    sizes = [1] * x.ndim
    for dim, size_dim in zip(
        [d for d in range(x.ndim) if d not in dropped], window_dims, strict=True
    ):
        sizes[dim] = updates.shape[size_dim]
    batch_dims = [d for d in range(updates.ndim) if d not in window_dims]
    for position, start in _batches(
        node,
        indices,
        "scatter_dims_to_operand_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    ):
        ends = zip(start, sizes, x.shape, strict=True)
        if any(s < 0 or s + size > n for s, size, n in ends):
            continue
        where = tuple(slice(s, s + size) for s, size in zip(start, sizes, strict=True))
        which: list[int | slice] = [slice(None)] * updates.ndim
        for dim, place in zip(batch_dims, position, strict=True):
            which[dim] = place
        update = updates[tuple(which)].reshape(sizes)
        if node["kind"] == "set":
            result[where] = update
        else:
            combined = COMBINE[node["kind"]](arithmetic(result[where]), arithmetic(update))
            result[where] = cast(combined, node.dtype)
    return result


def _scatters() -> Iterable[Case]:
    types = (_X, tensor(DType.S32, 2, 3), tensor(DType.F32, 3, 2, 3, 5))
    attrs = {
        "update_window_dims": (0, 3),
        "inserted_window_dims": (1,),
        "scatter_dims_to_operand_dims": (1,),
        "index_vector_dim": 2,
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "unique": False,
    }
    for kind in SCATTER_KINDS:
        yield Case(kind, types, {**attrs, "kind": kind}, special=False, low=-1)


def _integers(node: Node) -> bool:
    whole = node.dtype.is_integer or node.dtype is DType.PRED
    return whole and node["kind"] in ("mul", "min", "max")


SCATTER = Operator(
    op=Op.SCATTER,
    kind=Kind.REDUCTION,
    engine=Engine.DMA,
    cost=Cost.BYTES,
    attrs=names(
        "kind update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
        "index_vector_dim input_batching_dims scatter_indices_batching_dims"
    ),
    optional=names("unique"),  # true: no element is updated twice
    rule=scatter_rule,
    meaning=scatter,
    cases=_scatters,
    gaps=(
        Gap("NCC_EVRF016", _integers),
        Gap(
            "NCC_EVRF031",
            _beyond,
            says="scatter out-of-bounds: the indices of an iota run beyond the operand's dimension",
        ),
        Gap(
            "NCC_EVRF060",
            lambda node: node["kind"] == "add" and takes(node, WIDE),
            says="Scatter does not support integer operands on this target" + IN_F32,
            accept="scatter",
        ),
    ),
)

OPERATORS = (DYNAMIC_SLICE, DYNAMIC_UPDATE_SLICE, GATHER, SCATTER)
