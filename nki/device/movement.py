"""Operators that move elements: copies of views, concatenations, padding, windows at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.emitter import PARTITIONS, Emitter, Value, chunks, require_form
from nki.device.groups import Group, Use, is_number
from nki.device.rows import blocks_of, number_of
from nki.device.transfers import Leaf, load, pattern, storable, store
from nki.device.types import HELD, words
from nki.device.views import View, collapsed, contiguous
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = [
    "copy_view", "fill", "in_hbm", "placed", "run_concatenate", "run_dynamic", "run_iota",
    "run_move", "run_pad", "scalar",
]  # fmt: skip

Tensors = Mapping[Node, NkiTensor]

_SHORT = 64  # bytes: runs below that are loaded as tiles, which are turned
_MOST_COLUMNS = 4096
_MOST_COPIED = 1 << 20  # elements that one copy from HBM to HBM moves
_LEAST_RUN = 1 << 11  # elements of one run that are worth a copy of their own


def copy_view(
    e: Emitter, source: NkiTensor, view: View, target: NkiTensor, where: View, dtype: DType
) -> None:
    """Copy a view of one tensor in HBM to a view of another one, of equal size."""
    require_form(dtype)
    inner, outer = collapsed(view.dims), collapsed(where.dims)
    run = min(_run(inner), _run(outer)) * info(HELD[dtype]).itemsize * words(dtype)
    turned = _turned(view)
    if turned is None or run >= min(_SHORT, max(1, view.size) * info(HELD[dtype]).itemsize):
        _copy_runs(e, source, view, target, where, dtype)
        return
    rows, columns = _matrix(view, where, turned)
    at = Leaf(source, dtype, view.offset, *rows), Leaf(target, dtype, where.offset, *columns)
    height = math.prod(size for size, _ in at[0].rows)
    width = math.prod(size for size, _ in at[0].columns)
    tiles = [(block, part) for block in blocks_of(height) for part in chunks(width, _MOST_COLUMNS)]
    for (row, partitions), (column, some) in e.share(tiles):
        e.partitions, e.columns = partitions, some
        store(e, at[1], load(e, at[0], row, column), row, column)


def _run(dims: Sequence[tuple[int, int]]) -> int:
    """Return how many elements lie one after the other."""
    return dims[-1][0] if dims and dims[-1][1] == 1 else 1 if dims else 1 << 30


def _copy_runs(
    e: Emitter, source: NkiTensor, view: View, target: NkiTensor, where: View, dtype: DType
) -> None:
    """Copy in HBM, the outermost dimension in parts if there is much; cores share it.

    What lies in one run on both sides is a single row of a transfer, and one engine moves a row:
    it is cut into a part for each of them.
    """
    dims = [tuple(shown.dims[d] for d in _long(view)) for shown in (view, where)]
    one_run = collapsed(dims[0]) == collapsed(dims[1]) == collapsed(((view.size, 1),))
    if one_run:
        dims = [((view.size, 1),)] * 2
    size = dims[0][0][0]
    most = max(1, min(_MOST_COPIED * size // view.size, -(-size // e.cores)))
    if one_run:
        parts = e.cores * e.target.core.dma_engines
        most = min(most, max(_LEAST_RUN, -(-size // parts)))
    width = words(dtype)
    for at, some in e.share(chunks(size, most)):
        ends = []
        for tensor, offset, ((_, stride), *inner) in (
            (target, where.offset, dims[1]),
            (source, view.offset, dims[0]),
        ):
            part = collapsed(((some, stride), *inner))
            ends.append(pattern(tensor, part, offset + at * stride, width))
        nisa.dma_copy(dst=ends[0], src=ends[1])


def _long(view: View) -> list[int]:
    """Return the dimensions of more than one element."""
    return [d for d, size in enumerate(view.shape) if size > 1]


def _turned(view: View) -> int | None:
    """Return the dimension that a view runs along; None if it is the last one that is long."""
    long = _long(view)
    first = next((d for d in long if abs(view.strides[d]) == 1), None)
    return None if first is None or first == long[-1] else first


def _matrix(view: View, where: View, turned: int) -> tuple[tuple, tuple]:  # type: ignore[type-arg]
    """Return rows and columns of both views, so that columns are read or written in runs.

    The views have the same shape. Columns are what is contiguous in the target; the dimension along
    which the source runs is the last of the rows, so that tiles are turned.
    """
    *others, last = _long(view)
    order = [d for d in others if d != turned] + [turned]
    made = []
    for shown in (view, where):
        rows = collapsed(tuple(shown.dims[d] for d in order))
        made.append((rows, collapsed(shown.dims[last : last + 1])))
    return made[0], made[1]


def fill(e: Emitter, target: NkiTensor, size: int, dtype: DType, value: Value | float) -> None:
    """Fill a tensor in HBM: a number, or a vector of it on all partitions."""
    columns = min(max(1, -(-size // PARTITIONS)), _MOST_COLUMNS)
    e.partitions, e.columns = min(PARTITIONS, size // columns), columns
    if e.partitions * columns < size and words(dtype) == 1:
        # All parts show one block, the first and largest.
        value = Value(storable(e, value, HELD[dtype]), dtype)
    at = 0
    while at < size:
        columns = min(columns, size - at)
        rows = min(PARTITIONS, (size - at) // columns)
        e.partitions, e.columns = rows, columns
        shown = value
        if isinstance(value, Value):
            wide = 1 if value.vector else columns
            shown = value._replace(tile=value.tile[0:rows, 0:wide])
        leaf = Leaf(target, dtype, at, collapsed(((rows, columns),)), collapsed(((columns, 1),)))
        store(e, leaf, shown, 0, 0)
        at += rows * columns


def run_move(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Copy what a node is a view of."""
    (node,) = group.nodes
    (use,) = group.uses[node]
    e.at(node)
    if is_number(use.source):
        fill(e, outputs[node], node.type.size, node.dtype, number_of(use.source))
        return
    where = contiguous(use.view.shape)
    copy_view(e, inputs[use.source], use.view, outputs[node], where, node.dtype)


def run_concatenate(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Copy operands side by side."""
    (node,) = group.nodes
    e.at(node)
    whole = contiguous(node.shape)
    at = 0
    for use in group.uses[node]:
        view = use.view
        offset = at * whole.strides[node["dim"]]
        at += view.shape[node["dim"]]
        if view.size:
            placed(e, use, inputs, outputs[node], View(view.shape, whole.strides, offset))


def placed(e: Emitter, use: Use, inputs: Tensors, target: NkiTensor, where: View) -> None:
    """Copy an operand to a view of a tensor; a number is written there."""
    dtype = use.source.dtype
    if not is_number(use.source):
        copy_view(e, inputs[use.source], use.view, target, where, dtype)
        return
    number = number_of(use.source)
    rows, columns = collapsed(where.dims[:-1]), collapsed(where.dims[-1:])
    leaf = Leaf(target, dtype, where.offset, rows, columns)
    for row, partitions in blocks_of(math.prod(where.shape[:-1])):
        for column, some in chunks(where.shape[-1] if where.shape else 1, _MOST_COLUMNS):
            e.partitions, e.columns = partitions, some
            store(e, leaf, number, row, column)


def run_pad(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Fill the result, then copy the operand into it, with gaps between its elements."""
    (node,) = group.nodes
    e.at(node)
    use, filler = group.uses[node]
    fill(e, outputs[node], node.type.size, node.dtype, scalar(e, filler, inputs))
    whole = contiguous(node.shape)
    view, offset = use.view, 0
    shape, first, strides = [], view.offset, []
    for d, size in enumerate(view.shape):
        step = node["interior"][d] + 1
        low = node["low"][d]
        # Elements i with 0 <= low + i * step < extent are inside.
        begin = max(0, -(low // step)) if low < 0 else 0
        end = min(size, -(-(node.shape[d] - low) // step))
        if end <= begin:
            return
        shape.append(end - begin)
        first += begin * view.strides[d]
        offset += (low + begin * step) * whole.strides[d]
        strides.append(step * whole.strides[d])
    inside = View(tuple(shape), view.strides, first)
    where = View(tuple(shape), tuple(strides), offset)
    placed(e, Use(use.source, inside), inputs, outputs[node], where)


def scalar(e: Emitter, use: Use, inputs: Tensors) -> Value | float | int:
    """Return a tensor of one element on all partitions, or its number."""
    if is_number(use.source):
        return number_of(use.source)
    e.partitions, e.columns = PARTITIONS, 1
    return load(e, Leaf(inputs[use.source], use.source.dtype, use.view.offset, (), ()), 0, 0)


# --- windows whose place a run decides -----------------------------------------------------------


def clamped_start(
    e: Emitter,
    starts: Sequence[Use],
    inputs: Tensors,
    whole: View,
    sizes: Sequence[int],
    width: int,
) -> tuple[NkiTensor | None, int]:
    """Return where a window begins: items of a flat tensor, in a tile of one element, and a number.

    Args:
        e: the emitter.
        starts: one number for each dimension.
        inputs: tensors in HBM.
        whole: what the window is a part of.
        sizes: of the window, which is moved inside.
        width: items of an element.
    """
    total: Value | None = None
    known = whole.offset * width
    for start, size, extent, stride in zip(starts, sizes, whole.shape, whole.strides, strict=True):
        most = extent - size
        if is_number(start.source):
            known += min(max(int(number_of(start.source)), 0), most) * stride * width
            continue
        if not most:
            continue
        e.partitions, e.columns = 1, 1
        value = load(e, Leaf(inputs[start.source], start.source.dtype, start.view.offset, (), ()),
                     0, 0)  # fmt: skip
        inside = e.integer("minimum", e.integer("maximum", value, 0, DType.S32), most, DType.S32)
        part = e.integer("multiply", inside, stride * width, DType.S32)
        total = part if total is None else e.integer("add", total, part, DType.S32)
    return (None if total is None else total.tile), known


def run_dynamic(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Copy a window whose place is known when the program runs, out of a tensor or into it."""
    (node,) = group.nodes
    e.at(node)
    require_form(node.dtype)
    uses = group.uses[node]
    reads = node.op is Op.DYNAMIC_SLICE
    width = words(node.dtype)
    if reads:
        sizes, starts, whole = node["sizes"], uses[1:], uses[0].view
        outside, inside = in_hbm(e, uses[0], inputs), contiguous(node.shape)
        inner = outputs[node]
    else:
        sizes, starts, whole = uses[1].view.shape, uses[2:], contiguous(node.shape)
        placed(e, uses[0], inputs, outputs[node], whole)
        outside, inside = outputs[node], uses[1].view
        inner = in_hbm(e, uses[1], inputs)
    place, known = clamped_start(e, starts, inputs, whole, sizes, width)
    window = [[stride * width, size] for size, stride in collapsed(
        tuple(zip(sizes, whole.strides, strict=True)))]  # fmt: skip
    if width > 1:
        window.append([1, width])
    moved = outside.ap(window or [[1, 1]], offset=known, scalar_offset=place, indirect_dim=0)
    still = pattern(inner, collapsed(inside.dims), inside.offset, width)
    if reads:
        nisa.dma_copy(dst=still, src=moved)
    else:
        nisa.dma_copy(dst=moved, src=still)


def in_hbm(e: Emitter, use: Use, inputs: Tensors) -> NkiTensor:
    """Return an operand in HBM; a number is written there."""
    if not is_number(use.source):
        return inputs[use.source]
    size = use.source.type.size
    dtype = use.source.dtype
    made = nl.ndarray((size * words(dtype),), dtype=HELD[dtype], buffer=nl.private_hbm)
    fill(e, made, size, dtype, number_of(use.source))
    return made


def run_iota(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Write positions along a dimension."""
    del inputs
    (node,) = group.nodes
    e.at(node)
    require_form(node.dtype)
    dim = node["dim"]
    before = math.prod(node.shape[:dim])
    size, after = node.shape[dim], math.prod(node.shape[dim + 1 :])
    # (before, size, after): the positions are rows where there are columns behind them.
    view = contiguous((before, size, after))
    for row, partitions in blocks_of(size) if after > 1 else [(0, 1)]:
        for column, some in chunks(after if after > 1 else size, _MOST_COLUMNS):
            e.partitions, e.columns = partitions, some
            tile = e.tile(some, "int32")
            if after > 1:
                nisa.iota(tile, pattern=[[0, some]], offset=row, channel_multiplier=1)
            else:
                nisa.iota(tile, pattern=[[1, some]], offset=column, channel_multiplier=0)
            value = Value(tile, DType.S32)
            if HELD[node.dtype] != "int32":
                value = e.copied(value, node.dtype)
            for block in range(before):
                offset = block * view.strides[0]
                rows = ((size, after),) if after > 1 else ()
                columns = ((after, 1),) if after > 1 else ((size, 1),)
                leaf = Leaf(outputs[node], node.dtype, offset, collapsed(rows), collapsed(columns))
                store(e, leaf, value, row, column)
