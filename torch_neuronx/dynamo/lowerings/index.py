"""Reading and writing at positions that tensors hold: XLA's gather and scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import bounded, checked, token
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.lowerings.library import called
from torch_neuronx.dynamo.registry import Context, lowers
from torch_neuronx.program.dtypes import TO_TORCH

aten = torch.ops.aten
Places = Sequence[tuple[int, Node]]  # (dimension, positions along it), positions of one shape


def take_along(x: Node, places: Places, at: int | None = None) -> Node:
    """X indexed in some dimensions by tensors of one shape, whose dimensions replace them.

    The new dimensions stand in the place of the first indexed one, or at `at`.
    """
    dims = tuple(d for d, _ in places)
    index, vector = e.flat_index([p for _, p in places])
    batch = places[0][1].shape
    first = dims[0] if at is None else at
    rest = [d for d in range(x.type.rank) if d not in dims]
    offset = [i if i < first else i + len(batch) for i in range(len(rest))]
    if not x.type.size:
        kept = [x.shape[d] for d in rest]
        return e.number(0, x.dtype, (*kept[:first], *batch, *kept[first:]))
    return b.make(
        Op.GATHER,
        (x, index),
        offset_dims=tuple(offset),
        collapsed_slice_dims=tuple(sorted(dims)),
        start_index_map=dims,
        index_vector_dim=vector,
        slice_sizes=tuple(1 if d in dims else n for d, n in enumerate(x.shape)),
        operand_batching_dims=(),
        start_indices_batching_dims=(),
    )


def put_along(x: Node, places: Places, updates: Node, kind: str, at: int | None = None) -> Node:
    """The counterpart of `take_along`: `updates` has the shape that it would return."""
    dims = tuple(d for d, _ in places)
    index, vector = e.flat_index([p for _, p in places])
    rank = places[0][1].type.rank
    first = dims[0] if at is None else at
    rest = [d for d in range(x.type.rank) if d not in dims]
    window = [i if i < first else i + rank for i in range(len(rest))]
    if not updates.type.size:
        return x
    return b.make(
        Op.SCATTER,
        (x, index, updates),
        update_window_dims=tuple(window),
        inserted_window_dims=tuple(sorted(dims)),
        scatter_dims_to_operand_dims=dims,
        index_vector_dim=vector,
        input_batching_dims=(),
        scatter_indices_batching_dims=(),
        kind=kind,
    )


def _accumulated(x: Node, places: Places, updates: Node, kind: str, at: int | None = None) -> Node:
    """Like `put_along`, sums and products of narrow floats in float32."""
    if kind == "set":
        return put_along(x, places, updates, kind, at)
    if x.dtype is DType.PRED:
        kind = {"add": "max", "mul": "min"}.get(kind, kind)
    wide = compute_dtype(x.dtype)
    result = put_along(b.convert(x, wide), places, b.convert(updates, wide), kind, at)
    return b.convert(result, x.dtype)


# ---- index, index_put ---------------------------------------------------------------------------


def _indexed(
    cx: Context, x: Node, indices: Sequence[Node | None]
) -> tuple[list[tuple[int, Node]], int]:
    """(Dimension, positions) pairs of advanced indexing, and where the new dimensions stand."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    shape = e.shape_of(*(i for _, i in given))
    dims = [d for d, _ in given]
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    places = []
    for d, i in given:
        # Nothing is looked up if another index, or what each names, has no elements.
        used = 0 not in shape and (0 not in rest or not x.shape[d])
        index = bounded(cx, i, d, x.shape[d], negative=True) if used else i
        places.append((d, b.broadcast_to(e.wrap_index(index, x.shape[d]), shape)))
    together = dims[-1] - dims[0] + 1 == len(dims)
    return places, dims[0] if together else 0


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(cx: Context, x: Node, indices: Sequence[Node | None]) -> Node:
    if all(i is None for i in indices):
        return x
    if any(i is not None and _is_mask(i) for i in indices):
        raise NotImplementedError("an index of truth values")
    places, at = _indexed(cx, x, indices)
    return take_along(x, places, at)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    cx: Context, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False
) -> Node:
    values = b.convert(values, cx.dtype)
    given = [i for i in indices if i is not None]
    if not given:
        raise cx.refused("at least one index must be provided")
    if any(map(_is_mask, given)):
        _compare_masks(cx, x, indices)
        return _masked_put(x, indices, values, accumulate=accumulate)
    places, at = _indexed(cx, x, indices)
    dims = [d for d, _ in places]
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    shape = (*rest[:at], *places[0][1].shape, *rest[at:])
    if not _fit(values.shape, shape):
        text = (
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}"
        )
        raise cx.refused(text)
    updates = b.broadcast_to(values, shape)
    return _accumulated(x, places, updates, "add" if accumulate else "set", at)


def _fit(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether a tensor can be broadcast, which PyTorch's tracing doesn't ask of values."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(n in {1, m} for n, m in pairs)


def _is_mask(index: Node) -> bool:
    return index.dtype in (DType.PRED, DType.U8)


def _compare_masks(cx: Context, x: Node, indices: Sequence[Node | None]) -> None:
    """Compare masks with the dimensions that they stand for, which PyTorch's tracing doesn't.

    Raises:
        RefusedArgumentError: One has another shape, though it could be broadcast.
    """
    dim = 0
    for i in indices:
        if i is None or not _is_mask(i):
            dim += 1
            continue
        for at, (n, whole) in enumerate(zip(i.shape, x.shape[dim:], strict=False)):
            if n != whole:
                text = (
                    f"The shape of the mask {list(i.shape)} at index {at} does not match the "
                    f"shape of the indexed tensor {list(x.shape)} at index {dim + at}"
                )
                raise cx.refused(text)
        dim += i.type.rank


def _masked_put(x: Node, indices: Sequence[Node | None], values: Node, *, accumulate: bool) -> Node:
    """x[mask] = values, for one mask and values that are the same for all its elements."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    (dim, mask), *others = given
    tail = x.shape[dim + mask.type.rank :]
    # Values that broadcast to (1, tail) are the same for all elements of the mask. Those that fit
    # for no number of elements are refused where the others run.
    if others or dim or not _fit(values.shape, (1, *tail)):
        raise NotImplementedError("a different value for each element of a mask")
    values = b.reshape(values, values.shape[max(values.type.rank - len(tail), 0) :])
    values = b.broadcast_to(values, x.shape)
    pred = b.broadcast_in_dim(e.not_zero(mask), x.shape, range(dim, dim + mask.type.rank))
    if accumulate and x.dtype is DType.PRED:
        return b.binary(Op.OR, x, b.binary(Op.AND, pred, values))
    if accumulate:
        wide = compute_dtype(x.dtype)
        total = b.convert(b.add(b.convert(x, wide), b.convert(values, wide)), x.dtype)
        return b.select(pred, total, x)
    return b.select(pred, values, x)


@lowers(aten._unsafe_masked_index.default)
def masked_index(
    cx: Context, x: Node, mask: Node, indices: Sequence[Node | None], fill: Scalar
) -> Node:
    safe = _clamped(x, indices)
    taken = index(cx, x, safe)
    return b.select(b.broadcast_to(mask, taken.shape), taken, e.like(taken, fill))


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put(
    cx: Context, x: Node, mask: Node, indices: Sequence[Node | None], values: Node
) -> Node:
    safe = _clamped(x, indices)
    wanted = b.select(b.broadcast_to(mask, values.shape), values, e.like(values, 0))
    return index_put(cx, x, safe, wanted, accumulate=True)


def _clamped(x: Node, indices: Sequence[Node | None]) -> list[Node | None]:
    return [
        None if i is None else b.clamp(e.like(i, -n), i, e.like(i, n - 1))
        for i, n in zip(indices, x.shape, strict=False)
    ]


# ---- whole rows along one dimension -------------------------------------------------------------


@lowers(aten.embedding.default)
def embedding(
    cx: Context,
    weight: Node,
    indices: Node,
    _padding_idx: int = -1,
    _scale_grad_by_freq: bool = False,
    _sparse: bool = False,
) -> Node:
    return take_along(weight, [(0, _row_numbers(cx, indices, weight.shape[0]))])


def _row_numbers(cx: Context, indices: Node, rows: int, *, lookup: bool = True) -> Node:
    text = f"index out of range in self: {{}} of {rows}"
    return checked(cx, indices, 0, rows, text, lookup=lookup)


@lowers(aten.embedding_dense_backward.default)
def embedding_backward(
    cx: Context, grad: Node, indices: Node, rows: int, padding_idx: int, scale_by_freq: bool
) -> Node:
    wide = compute_dtype(cx.dtype)
    # Indices of -1 are those of the padding that nested tensors have; they get no gradient.
    indices = checked(cx, indices, -1, rows, f"index out of range in self: {{}} of {rows}")
    g = b.convert(grad, wide)
    if scale_by_freq:
        ones = e.number(1, wide, indices.shape)
        counts = put_along(e.number(0, wide, (rows,)), [(0, indices)], ones, "add")
        share = take_along(counts, [(0, indices)])
        g = b.divide(g, b.broadcast_in_dim(share, g.shape, range(indices.type.rank)))
    if padding_idx >= 0:
        pad = b.equal(indices, e.like(indices, padding_idx))
        pad = b.broadcast_in_dim(pad, g.shape, range(indices.type.rank))
        g = b.select(pad, e.like(g, 0), g)
    total = put_along(e.number(0, wide, cx.shape), [(0, indices)], g, "add")
    return b.convert(total, cx.dtype)


@lowers(aten.index_select.default)
def index_select(cx: Context, x: Node, dim: int, indices: Node) -> Node:
    count = indices.type.size
    if not x.type.rank and count != 1:
        text = f"index_select(): Index to scalar can have only 1 value, got {count} value(s)"
        raise cx.refused(text)
    axis = e.dim(dim, x.type.rank) if x.type.rank else 0
    indices = _row_numbers(cx, indices, x.shape[axis] if x.type.rank else 1, lookup=not axis)
    if not x.type.rank:
        x = b.reshape(x, (1,))
    taken = take_along(x, [(axis, b.reshape(indices, (indices.type.size,)))])
    return b.reshape(taken, cx.shape)


def _rows(
    cx: Context, x: Node, dim: int, indices: Node, *, used: bool = True, negative: bool = False
) -> tuple[int, list[tuple[int, Node]]]:
    """The axis, and (dimension, positions) of its slices, which are compared if they are `used`."""
    axis = e.dim(dim, x.type.rank)
    flat = b.reshape(indices, (indices.type.size,))
    if used:
        flat = bounded(cx, flat, axis, x.shape[axis], negative=negative)
    return axis, [(axis, e.wrap_index(flat, x.shape[axis]))]


def _has_slices(x: Node, dim: int) -> bool:
    """Whether slices along a dimension have elements; kernels that loop over them ask no other."""
    axis = e.dim(dim, x.type.rank)
    return 0 not in x.shape[:axis] + x.shape[axis + 1 :]


_OTHER_SHAPE = "source tensor shape must match self tensor shape, excluding the specified dimension"


def _refuse_other_slices(cx: Context, x: Node, dim: int, indices: Node, source: Node) -> None:
    """Refuse a source that does not have a slice for each index, which PyTorch's tracing takes.

    Raises:
        RefusedArgumentError: As the CPU's kernels of `index_add` and `index_reduce`.
    """
    text = ""
    if x.type.rank:
        axis, count = e.dim(dim, x.type.rank), indices.type.size
        extent = source.shape[axis] if axis < source.type.rank else 1
        if source.type.rank and extent != count:
            text = f"Number of indices ({count}) should be equal to source.size(dim): ({extent})"
        elif source.shape != (*x.shape[:axis], count, *x.shape[axis + 1 :]):
            text = _OTHER_SHAPE
    elif source.type.rank:
        text = _OTHER_SHAPE
    elif indices.type.size != 1:
        text = f"Dimension specified as {dim} but tensor has no dimensions"
    if text:
        shapes = f"self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
        raise cx.refused(f"{text}. Got {shapes}")


@lowers(aten.index_add.default)
def index_add(
    cx: Context, x: Node, dim: int, indices: Node, source: Node, *, alpha: Scalar = 1
) -> Node:
    _refuse_other_slices(cx, x, dim, indices, source)
    if not x.type.rank:
        x, source = b.reshape(x, (1,)), b.reshape(source, (1,))
    axis, places = _rows(cx, x, dim, indices, used=bool(x.type.size))
    wide = compute_dtype(x.dtype)
    shape = (*x.shape[:axis], indices.type.size, *x.shape[axis + 1 :])
    source = e.scaled(b.reshape(b.convert(source, wide), shape), alpha)
    result = _accumulated(b.convert(x, wide), places, source, "add")
    return b.reshape(b.convert(result, cx.dtype), cx.shape)


@lowers(aten.index_copy.default)
def index_copy(cx: Context, x: Node, dim: int, indices: Node, source: Node) -> Node:
    if not x.type.rank:
        x = b.reshape(x, (1,))
    axis, places = _rows(cx, x, dim, indices, used=_has_slices(x, dim))
    shape = (*x.shape[:axis], indices.type.size, *x.shape[axis + 1 :])
    result = put_along(x, places, b.reshape(b.convert(source, cx.dtype), shape), "set")
    return b.reshape(result, cx.shape)


@lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(cx: Context, x: Node, dim: int, indices: Node, fill: Value) -> Node:
    if not x.type.rank:
        x = b.reshape(x, (1,))
    axis, places = _rows(cx, x, dim, indices, used=_has_slices(x, dim), negative=True)
    shape = (*x.shape[:axis], indices.type.size, *x.shape[axis + 1 :])
    result = put_along(x, places, b.broadcast_to(e.value(fill, cx.dtype), shape), "set")
    return b.reshape(result, cx.shape)


@lowers(aten.index_reduce.default)
def index_reduce(
    cx: Context,
    x: Node,
    dim: int,
    indices: Node,
    source: Node,
    reduce: str,
    *,
    include_self: bool = True,
) -> Node:
    whole = x.shape
    _refuse_other_slices(cx, x, dim, indices, source)
    if not x.type.rank:
        x = b.reshape(x, (1,))
    axis, places = _rows(cx, x, dim, indices)
    shape = (*x.shape[:axis], indices.type.size, *x.shape[axis + 1 :])
    source = b.reshape(b.convert(source, cx.dtype), shape)
    return b.reshape(_combine(x, places, source, reduce, include_self=include_self), whole)


# ---- element by element: gather and scatter -----------------------------------------------------


@lowers(aten.gather.default)
def gather(cx: Context, x: Node, dim: int, indices: Node, *, sparse_grad: bool = False) -> Node:
    del sparse_grad
    shape = indices.shape
    if not indices.type.size:
        return e.number(0, x.dtype, shape)
    if not x.type.rank or not indices.type.rank:
        x, indices = _ranked(x), _ranked(indices)
    axis = e.dim(dim, x.type.rank)
    indices = bounded(cx, indices, axis, x.shape[axis], lookup=False)
    others = tuple(d for d in range(x.type.rank) if d != axis)
    for d in others:
        x = b.slice_dim(x, d, 0, indices.shape[d])
    if not x.type.size:  # the check refuses them
        return e.number(0, x.dtype, shape)
    taken = b.make(
        Op.GATHER,
        (x, indices),
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        index_vector_dim=indices.type.rank,
        slice_sizes=(1,) * x.type.rank,
        operand_batching_dims=others,
        start_indices_batching_dims=others,
    )
    return b.reshape(taken, shape)


def _ranked(x: Node) -> Node:
    return x if x.type.rank else b.reshape(x, (1,))


def _elements(x: Node, axis: int, indices: Node) -> list[tuple[int, Node]]:
    """Full coordinates of the elements that gather and scatter with these indices touch."""
    return [
        (d, indices if d == axis else e.positions(indices.shape, d)) for d in range(x.type.rank)
    ]


def _scatter(
    cx: Context,
    x: Node,
    dim: int,
    indices: Node,
    source: Node,
    kind: str,
    *,
    include_self: bool = True,
) -> Node:
    """Write elements; `source` may be larger than `indices`, which says what is used."""
    if not indices.type.size:
        return x
    shape = x.shape
    if not x.type.rank or not indices.type.rank:
        x, indices, source = map(_ranked, (x, indices, source))
    for d in range(source.type.rank):
        source = b.slice_dim(source, d, 0, indices.shape[d])
    axis = e.dim(dim, x.type.rank)
    indices = bounded(cx, indices, axis, x.shape[axis], lookup=False)
    others = tuple(d for d in range(x.type.rank) if d != axis)
    if kind == "set" and all(x.shape[d] == indices.shape[d] for d in others):
        result = _scatter_batched(x, axis, indices, source, kind)
    else:
        places = _elements(x, axis, indices)
        result = _combine(x, places, source, kind, include_self=include_self)
    return b.reshape(result, shape)


def _scatter_batched(x: Node, axis: int, indices: Node, source: Node, kind: str) -> Node:
    others = tuple(d for d in range(x.type.rank) if d != axis)
    return b.make(
        Op.SCATTER,
        (x, indices, source),
        update_window_dims=(),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        index_vector_dim=indices.type.rank,
        input_batching_dims=others,
        scatter_indices_batching_dims=others,
        kind=kind,
    )


_KINDS = {
    "set": "set", "add": "add", "multiply": "mul",
    "sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min",
}  # fmt: skip


def _combine(x: Node, places: Places, source: Node, reduce: str, *, include_self: bool) -> Node:
    kind = _KINDS[reduce]
    if kind == "set":
        return put_along(x, places, source, kind)
    if not include_self:
        start = e.like(source, _neutral(kind, x.dtype))
        x = put_along(x, places, start, "set")
    if reduce != "mean":
        return _accumulated(x, places, source, kind)
    wide = compute_dtype(x.dtype)
    total = put_along(b.convert(x, wide), places, b.convert(source, wide), "add")
    ones = e.number(1, wide, source.shape)
    base = e.number(1, wide, x.shape)
    if not include_self:
        base = put_along(base, places, e.like(ones, 0), "set")
    count = put_along(base, places, ones, "add")
    if wide.is_float:
        return b.convert(b.divide(total, count), x.dtype)
    from torch_neuronx.dynamo.lowerings.arithmetic import floor_divided  # noqa: PLC0415

    return floor_divided(total, count)


def _neutral(kind: str, dtype: DType) -> Scalar:
    if kind in {"add", "mul"}:
        return int(kind == "mul")

    torch_dtype = TO_TORCH[dtype]
    if dtype.is_float:
        return float("-inf") if kind == "max" else float("inf")
    if dtype is DType.PRED:
        return kind == "min"
    info = torch.iinfo(torch_dtype)
    return info.min if kind == "max" else info.max


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce)
def scatter(
    cx: Context, x: Node, dim: int, indices: Node, source: Value, *, reduce: str = "set"
) -> Node:
    if isinstance(source, Node):
        node = b.convert(source, cx.dtype)
    else:
        node = e.number(source, cx.dtype, indices.shape)
    return _scatter(cx, x, dim, indices, node, reduce)


@lowers(aten.scatter_add.default)
def scatter_add(cx: Context, x: Node, dim: int, indices: Node, source: Node) -> Node:
    return _scatter(cx, x, dim, indices, b.convert(source, cx.dtype), "add")


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    cx: Context,
    x: Node,
    dim: int,
    indices: Node,
    source: Node,
    reduce: str,
    *,
    include_self: bool = True,
) -> Node:
    source = b.convert(source, cx.dtype)
    return _scatter(cx, x, dim, indices, source, reduce, include_self=include_self)


@lowers(aten.take.default)
def take(cx: Context, x: Node, indices: Node) -> Node:
    flat = b.reshape(x, (x.type.size,))
    indices = _of_elements(cx, x, indices)
    return take_along(flat, [(0, e.wrap_index(indices, x.type.size))])


def _of_elements(cx: Context, x: Node, indices: Node) -> Node:
    size = x.type.size
    text = f"out of range: tried to access index {{}} on a tensor of {size} elements."
    return checked(cx, indices, -size, size, text)


@lowers(aten.put.default)
def put(cx: Context, x: Node, indices: Node, source: Node, accumulate: bool = False) -> Node:
    if not indices.type.size:
        return x
    flat = b.reshape(x, (x.type.size,))
    indices = _of_elements(cx, x, indices)
    places = [(0, e.wrap_index(indices, x.type.size))]
    source = b.reshape(b.convert(source, cx.dtype), indices.shape)
    result = _accumulated(flat, places, source, "add" if accumulate else "set")
    return b.reshape(result, x.shape)


@lowers(aten.max_unpool2d.default, aten.max_unpool3d.default)
def max_unpool(cx: Context, x: Node, indices: Node, size: Sequence[int], *_window: Any) -> Node:
    area = math.prod(size)
    planes = x.type.size // max(1, math.prod(x.shape[-len(size) :]))
    text = f"Found an invalid max index: {{}} (output volumes are of size {_times(size)})"
    indices = checked(cx, indices, 0, area, text, lookup=False)
    flat = (planes, x.type.size // max(1, planes))
    places = [(0, e.positions(flat, 0)), (1, b.reshape(indices, flat))]
    zeros = e.number(0, cx.dtype, (planes, area))
    return b.reshape(put_along(zeros, places, b.reshape(x, flat), "set"), cx.shape)


def _times(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


@lowers(aten.masked_scatter.default)
def masked_scatter(cx: Context, x: Node, mask: Node, source: Node) -> Node:
    pred = b.broadcast_to(e.not_zero(mask), cx.shape)
    x = b.broadcast_to(x, cx.shape)
    flat = b.reshape(b.convert(pred, DType.S64), (x.type.size,))
    if not x.type.size:
        return x
    text = "masked_scatter: Number of elements of source < number of ones in mask"
    size = source.type.size
    # By itself: a place that is known needs no number that it could be added to.
    cx.effects.append(token(cx, b.reduce(flat, "add", 0), 0, size + 1, text, lookup=False))
    if not size:
        return x
    # Element number k of the mask takes element k of the source.
    order = b.subtract(b.cumulative(flat, "add", 0), e.like(flat, 1))
    order = b.clamp(e.like(order, 0), order, e.like(order, size - 1))
    taken = take_along(b.reshape(b.convert(source, cx.dtype), (size,)), [(0, order)])
    return b.select(pred, b.reshape(taken, cx.shape), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(cx: Context, grad: Node, mask: Node, _size: Sequence[int]) -> Node:
    pred = b.broadcast_to(e.not_zero(mask), grad.shape)
    if not cx.type.size or not grad.type.size:
        return e.number(0, cx.dtype, cx.shape)
    size = grad.type.size
    here = b.reshape(pred, (size,))
    order = b.cumulative(b.convert(here, DType.S64), "add", 0)
    order = b.select(here, b.subtract(order, e.like(order, 1)), e.like(order, 0))
    values = b.reshape(b.select(pred, grad, e.like(grad, 0)), (size,))
    flat = e.number(0, cx.dtype, (cx.type.size,))
    return b.reshape(_accumulated(flat, [(0, order)], values, "add"), cx.shape)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(cx: Context, grad: Node, x: Node, padding: Sequence[int]) -> Node:
    wide = compute_dtype(cx.dtype)
    total = b.convert(grad, wide)
    for i in range(len(padding) // 2):
        axis = x.type.rank - 1 - i
        extent, low = x.shape[axis], padding[2 * i]
        place = b.iota(DType.S64, (total.shape[axis],), 0)
        place = b.subtract(place, e.like(place, low))
        place = b.clamp(e.like(place, 0), place, e.like(place, extent - 1))
        shape = (*total.shape[:axis], extent, *total.shape[axis + 1 :])
        total = put_along(e.number(0, wide, shape), [(axis, place)], total, "add")
    return b.convert(total, cx.dtype)


# ---- sorted boundaries --------------------------------------------------------------------------


#: So many boundaries are compared with every value, in the loop that the values belong to; among
#: more of them ATen searches.
_FEW_BOUNDARIES = 64


def _count_below(right: bool, sequence: Node, values: Node, dtype: DType) -> Node:
    """How many boundaries (last dimension) lie before each value (last dimension)."""
    lead = values.shape[:-1] if sequence.type.rank > 1 else values.shape
    shape = (*values.shape, sequence.shape[-1])
    last = len(shape) - 1
    dims = (*range(len(lead)), last) if sequence.type.rank > 1 else (last,)
    bounds = b.broadcast_in_dim(sequence, shape, dims)
    wanted = b.broadcast_in_dim(values, shape, range(last))
    before = b.less_equal(bounds, wanted) if right else b.less(bounds, wanted)
    if wanted.dtype.is_float:
        before = b.or_(before, b.and_(b.is_nan(wanted), b.not_(b.is_nan(bounds))))
    return b.reduce(b.convert(before, dtype), "add", last)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    cx: Context,
    sequence: Node,
    values: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    if sequence.shape[-1] > _FEW_BOUNDARIES:
        options: dict[str, Any] = {"out_int32": out_int32, "right": right, "side": side}
        return called(cx, sequence, values, **options, sorter=sorter)  # type: ignore[no-any-return]
    if sorter is not None:
        text = "torch.searchsorted(): sorter index out of range: {}"
        sorter = checked(cx, sorter, 0, sequence.shape[-1], text, lookup=False)
        sequence = gather(cx, sequence, -1, sorter)
    node = values if isinstance(values, Node) else e.number(values, sequence.dtype)
    x, y = _common(sequence, node)
    return _count_below(right or side == "right", x, y, cx.dtype)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    cx: Context, values: Value, bounds: Node, *, out_int32: bool = False, right: bool = False
) -> Node:
    if bounds.shape[-1] > _FEW_BOUNDARIES:
        return called(cx, values, bounds, out_int32=out_int32, right=right)  # type: ignore[no-any-return]
    node = values if isinstance(values, Node) else e.number(values, bounds.dtype)
    x, y = _common(bounds, node)
    return _count_below(right, x, y, cx.dtype)


def _common(x: Node, y: Node) -> tuple[Node, Node]:
    dtype = compute_dtype(e.promote_types(x.dtype, y.dtype))
    return b.convert(x, dtype), b.convert(y, dtype)
