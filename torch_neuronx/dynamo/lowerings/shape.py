"""Views, copies and joins. The IR has no strides: a view is its value (see `storage` for those)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar, to_ir
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.lowerings.index import put_along
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(
    aten.view.default,
    aten.view_copy.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten._reshape_copy.default,
    aten.flatten.using_ints,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze.default,
    aten.unsqueeze_copy.default,
)
def reshape(cx: Context, x: Node, *_rest: object) -> Node:
    return b.reshape(x, cx.shape)


@lowers(
    aten.alias.default,
    aten.alias_copy.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.positive.default,
)
def same(_cx: Context, x: Node, **_options: object) -> Node:
    return x


@lowers(aten._to_copy.default)
def to_copy(cx: Context, x: Value, **_options: object) -> Node:
    # vmap makes tensors of numbers, which tracing turns back into numbers.
    found = e.cast(x, cx.dtype) if isinstance(x, Node) else e.value(x, cx.dtype)
    return b.broadcast_to(found, cx.shape)


@lowers(torch.ops.prims.convert_element_type.default)
def convert_element_type(cx: Context, x: Node, _dtype: object) -> Node:
    return e.cast(x, cx.dtype)


@lowers(aten.copy.default)
def copy(cx: Context, x: Node, source: Node, _non_blocking: bool = False) -> Node:
    del x
    return b.broadcast_to(e.cast(source, cx.dtype), cx.shape)


@lowers(aten.view.dtype, aten.view_copy.dtype)
def view_dtype(cx: Context, x: Node, dtype: torch.dtype) -> Node:
    return reinterpret(x, to_ir(dtype), cx.shape)


def reinterpret(x: Node, dtype: DType, shape: Sequence[int]) -> Node:
    """The bytes of `x` as another type; the last dimension grows or shrinks."""
    if x.dtype is dtype:
        return b.reshape(x, shape)
    if DType.PRED in (x.dtype, dtype):
        # A truth value is a byte that is 0 or 1.
        x = b.convert(x, DType.U8) if x.dtype is DType.PRED else x
        result = reinterpret(x, DType.U8 if dtype is DType.PRED else dtype, shape)
        return e.not_zero(result) if dtype is DType.PRED else result
    if x.dtype.itemsize == dtype.itemsize and not (x.dtype.is_complex or dtype.is_complex):
        return b.reshape(b.bitcast_convert(x, dtype), shape)
    raise NotImplementedError(f"reinterpreting {x.dtype.value} as {dtype.value}")


@lowers(aten.expand.default, aten.expand_copy.default)
def expand(cx: Context, x: Node, *_rest: object, **_options: object) -> Node:
    return b.broadcast_to(x, cx.shape)


@lowers(aten.permute.default, aten.permute_copy.default)
def permute(_cx: Context, x: Node, dims: Sequence[int]) -> Node:
    return b.transpose(x, tuple(dims))


@lowers(aten.transpose.int, aten.transpose_copy.int)
def transpose(_cx: Context, x: Node, first: int, second: int) -> Node:
    return b.swap_dims(x, first, second) if x.type.rank else x


@lowers(aten.t.default, aten.t_copy.default)
def t(_cx: Context, x: Node) -> Node:
    return b.swap_dims(x, 0, 1) if x.type.rank == 2 else x


@lowers(aten.select.int, aten.select_copy.int)
def select(cx: Context, x: Node, dim: int, index: int) -> Node:
    at = index % x.shape[dim]
    return b.reshape(b.slice_dim(x, dim, at, at + 1), cx.shape)


@lowers(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    cx: Context,
    x: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    del cx
    first, last = bounds(x.shape[dim], start, end)
    return b.slice_dim(x, dim, first, max(first, last), step)


def bounds(extent: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Start and end of a slice as PyTorch clamps them."""
    first, last, _ = slice(start, end).indices(extent)
    return first, last


def _parts(x: Node, dim: int, sizes: Sequence[int]) -> tuple[Node, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(b.slice_dim(x, dim, start, start + size))
        start += size
    return tuple(parts)


@lowers(
    aten.split_with_sizes.default,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split_with_sizes.default,
)
def split_with_sizes(_cx: Context, x: Node, sizes: Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    return _parts(x, dim, sizes)


@lowers(aten.split.Tensor, aten.split_copy.Tensor, aten.unsafe_split.Tensor)
def split(cx: Context, x: Node, _size: int, dim: int = 0) -> tuple[Node, ...]:
    return _parts(x, dim, [part.shape[dim] for part in cx.types])


@lowers(aten.unbind.int, aten.unbind_copy.int)
def unbind(_cx: Context, x: Node, dim: int = 0) -> tuple[Node, ...]:
    axis = e.dim(dim, x.type.rank)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(b.reshape(part, shape) for part in _parts(x, axis, [1] * x.shape[axis]))


@lowers(aten.cat.default)
def cat(cx: Context, tensors: Sequence[Node], dim: int = 0) -> Node:
    # PyTorch skips empty vectors whatever the other shapes are.
    full = [x for x in tensors if x.type.size or x.type.rank == len(cx.shape) != 1]
    if not full:
        return e.number(0, cx.dtype, cx.shape)
    return b.concatenate([b.convert(x, cx.dtype) for x in full], dim)


@lowers(aten.stack.default, aten._stack.default)
def stack(cx: Context, tensors: Sequence[Node], dim: int = 0) -> Node:
    return b.stack([b.convert(x, cx.dtype) for x in tensors], dim)


@lowers(aten.flip.default)
def flip(_cx: Context, x: Node, dims: Sequence[int]) -> Node:
    return b.reverse(x, tuple(dims)) if dims and x.type.rank else x


@lowers(aten.roll.default)
def roll(
    _cx: Context, x: Node, shifts: Sequence[int] | int, dims: Sequence[int] | int = ()
) -> Node:
    by = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    over = (dims,) if isinstance(dims, int) else tuple(dims)
    if not x.type.size:
        return x
    if not over:
        flat = b.reshape(x, (x.type.size,))
        return b.reshape(_rolled(flat, by[0], 0), x.shape)
    for shift, dim in zip(by, over, strict=True):
        x = _rolled(x, shift, dim)
    return x


def _rolled(x: Node, shift: int, dim: int) -> Node:
    extent = x.shape[dim]
    cut = (extent - shift) % extent
    if not cut:
        return x
    return b.concatenate([b.slice_dim(x, dim, cut, extent), b.slice_dim(x, dim, 0, cut)], dim)


@lowers(aten.repeat.default)
def repeat(cx: Context, x: Node, repeats: Sequence[int]) -> Node:
    lead = len(repeats) - x.type.rank
    x = b.reshape(x, (1,) * lead + x.shape)
    # Each dimension n becomes (times, n) and the two are joined again.
    shape = [n for times, extent in zip(repeats, x.shape, strict=True) for n in (times, extent)]
    tiled = b.broadcast_in_dim(x, shape, range(1, len(shape), 2))
    return b.reshape(tiled, cx.shape)


@lowers(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(cx: Context, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    rank = x.type.rank
    first, second = dim1 % rank, dim2 % rank
    rest = [d for d in range(rank) if d not in (first, second)]
    x = b.transpose(x, (*rest, first, second))
    count = cx.shape[-1]
    if not count:
        return e.number(0, cx.dtype, cx.shape)
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    # Along the diagonal of a matrix with c columns every step goes c + 1 elements on.
    flat = b.reshape(x, (*x.shape[:-2], rows * columns))
    start = down * columns + right
    stop = start + (count - 1) * (columns + 1) + 1
    return b.slice_dim(flat, -1, start, stop, columns + 1)


@lowers(aten.unfold.default, aten.unfold_copy.default)
def unfold(cx: Context, x: Node, dim: int, size: int, step: int) -> Node:
    if not x.type.rank:
        return b.reshape(x, cx.shape)
    axis = e.dim(dim, x.type.rank)
    count = cx.shape[axis]
    if step == size:  # windows do not overlap
        used = b.slice_dim(x, axis, 0, count * size)
        cut = b.reshape(used, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
        order = [d for d in range(cut.type.rank) if d != axis + 1]
        return b.transpose(cut, (*order, axis + 1))
    columns = [
        b.slice_dim(x, axis, i, i + (count - 1) * step + 1, step) for i in range(size)
    ] if size <= _FEW and count else None  # fmt: skip
    if columns is not None:
        return b.stack(columns, x.type.rank) if columns else e.number(0, cx.dtype, cx.shape)
    from torch_neuronx.dynamo.lowerings.index import take_along  # noqa: PLC0415

    window = (count, size)
    places = b.add(
        b.multiply(b.iota(DType.S64, window, 0), e.number(step, DType.S64, window)),
        b.iota(DType.S64, window, 1),
    )
    taken = take_along(x, [(axis, places)])
    order = [d for d in range(taken.type.rank) if d != axis + 1]
    return b.transpose(taken, (*order, axis + 1))


_FEW = 16  # windows up to here are joined from slices, longer ones gathered


@lowers(aten.constant_pad_nd.default)
def constant_pad(cx: Context, x: Node, padding: Sequence[int], fill: Scalar = 0) -> Node:
    rank = x.type.rank
    low, high = [0] * rank, [0] * rank
    for i in range(len(padding) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = padding[2 * i], padding[2 * i + 1]
    return b.pad(x, e.number(fill, cx.dtype), low, high)


# ---- writing into a part ------------------------------------------------------------------------


@lowers(aten.slice_scatter.default)
def slice_scatter(
    cx: Context,
    x: Node,
    source: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    axis = e.dim(dim, x.type.rank)
    first, last = bounds(x.shape[axis], start, end)
    source = b.convert(source, cx.dtype)
    if last <= first:
        return x
    shape = (*x.shape[:axis], -(-(last - first) // step), *x.shape[axis + 1 :])
    source = b.broadcast_to(source, shape)
    if shape == x.shape:
        return source
    if step == 1:
        starts = [first if d == axis else 0 for d in range(x.type.rank)]
        return b.dynamic_update_slice(x, source, starts)
    # The compiler knows such positions for a window with steps.
    place = b.iota(DType.S64, (shape[axis],), 0)
    place = b.add(b.multiply(place, e.like(place, step)), e.like(place, first))
    return put_along(x, [(axis, place)], source, "set")


@lowers(aten.select_scatter.default)
def select_scatter(cx: Context, x: Node, source: Node, dim: int, index: int) -> Node:
    axis = e.dim(dim, x.type.rank)
    size = x.shape[axis]
    if not -size <= index < size:
        text = f"index {index} out of range for tensor of size {list(x.shape)} at dimension {axis}"
        raise cx.refused(f"select(): {text}")
    at = index % size
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    update = b.reshape(b.convert(source, cx.dtype), shape)
    return b.dynamic_update_slice(x, update, [at if d == axis else 0 for d in range(x.type.rank)])


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    cx: Context, x: Node, source: Node, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Node:
    rank = x.type.rank
    first, second = dim1 % rank, dim2 % rank
    rest = [d for d in range(rank) if d not in (first, second)]
    down, right = max(-offset, 0), max(offset, 0)
    here = b.equal(
        b.add(e.positions(x.shape, first), e.number(right - down, DType.S64, x.shape)),
        e.positions(x.shape, second),
    )
    # The source lies along the rows of the diagonal; pad it to all rows and repeat it.
    rows, count = x.shape[first], source.shape[-1]
    edges = [0] * (source.type.rank - 1)
    full = b.pad(
        b.convert(source, cx.dtype),
        e.number(0, cx.dtype),
        (*edges, down),
        (*edges, rows - down - count),
    )
    return b.select(here, _spread_rows(full, x.shape, rest, first), x)


def _spread_rows(full: Node, shape: Sequence[int], rest: Sequence[int], row: int) -> Node:
    """Dimensions (rest..., row) of `full` to their places in `shape`, repeated along the other."""
    places = (*rest, row)
    order = sorted(range(len(places)), key=places.__getitem__)
    return b.broadcast_in_dim(b.transpose(full, order), shape, sorted(places))
