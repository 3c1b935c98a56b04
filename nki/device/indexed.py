"""Gather: places are computed on the chip, and DMA follows them.

A window is read from where an index points to: the tensor in HBM is flat, and the index
of each window's first element comes from the indices, one row of them to a partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import Emitter, Value, require_form
from nki.device.groups import Group
from nki.device.movement import in_hbm
from nki.device.patterns import ROOM, copied_patterns, run_patterns
from nki.device.rows import blocks_of
from nki.device.transfers import Leaf, load, pattern, pieces, size_of
from nki.device.types import HELD, words
from nki.device.views import Dims, View, collapsed, contiguous
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = ["Indexing", "divided", "indexing", "run_gather", "starts_of"]

Tensors = Mapping[Node, NkiTensor]


class Indexing(NamedTuple):
    """What indices say.

    Attributes:
        indices: of the positions: all dimensions but that of the vector, in HBM.
        vector: stride of the dimension of the vector.
        mapped: dimensions of the operand that the vector's elements count in.
        batching: dimensions of the operand that positions count in.
        places: dimension of the positions of each of them.
        whole: the operand.
        sizes: of a window, in all dimensions of the operand.
    """

    indices: View
    vector: int
    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    places: tuple[int, ...]
    whole: View
    sizes: tuple[int, ...]

    @property
    def windows(self) -> int:
        """How many windows."""
        return self.indices.size

    def window(self) -> Dims:
        """Return the dimensions of a window that has more than one element."""
        return collapsed(tuple(zip(self.sizes, self.whole.strides, strict=True)))


def indexing(
    node: Node,
    view: View,
    whole: View,
    sizes: Sequence[int],
    names: tuple[str, str, str],
) -> Indexing:
    """Return what the indices of a gather or scatter say.

    Args:
        node: which.
        view: of the indices.
        whole: the operand.
        sizes: of a window, in all dimensions of the operand.
        names: of the attributes: mapped dimensions, and the batching ones of both operands.
    """
    vector_dim = node["index_vector_dim"]
    if vector_dim == len(view.shape):
        positions, vector = view, 0
    else:
        kept = [d for d in range(len(view.shape)) if d != vector_dim]
        positions, vector = view.permuted(kept), view.strides[vector_dim]
    places = tuple(d - (d > vector_dim) for d in node[names[2]])
    return Indexing(positions, vector, node[names[0]], node[names[1]], places, whole, tuple(sizes))


def starts_of(
    e: Emitter,
    at: Indexing,
    tensor: NkiTensor,
    dtype: DType,
    row: int,
    *,
    clamp: bool,
    width: int,
    beyond: int,
) -> NkiTensor:
    """Return where the windows of the emitter's partitions begin, in items: (partitions, 1).

    Args:
        e: the emitter.
        at: what indices say.
        tensor: of the indices.
        dtype: of the indices.
        row: first position.
        clamp: windows are moved inside; else those outside begin at `beyond`.
        width: items of an element.
        beyond: see `clamp`.
    """
    e.columns = 1
    total: Value | None = None
    outside: Value | None = None

    def add(part: Value) -> None:
        nonlocal total
        total = part if total is None else e.integer("add", total, part, DType.S32)

    for number, dim in enumerate(at.mapped):
        most = at.whole.shape[dim] - at.sizes[dim]
        leaf = Leaf(
            tensor, dtype, at.indices.offset + number * at.vector, collapsed(at.indices.dims), ()
        )
        value = _dense(e, load(e, leaf, row, 0))
        high = e.integer("minimum", value, most, DType.S32)
        inside = e.integer("maximum", high, 0, DType.S32)
        if not clamp:
            wrong = e.integer("not_equal", inside, value, DType.S32)
            outside = wrong if outside is None else e.integer("maximum", outside, wrong, DType.S32)
        add(e.integer("multiply", inside, at.whole.strides[dim] * width, DType.S32))
    for dim, place in zip(at.batching, at.places, strict=True):
        add(_position(e, at, place, row, at.whole.strides[dim] * width))
    if total is None:
        total = Value(e.filled(0, "int32"), DType.S32, vector=True)
    if at.whole.offset:
        total = e.integer("add", total, at.whole.offset * width, DType.S32)
    if outside is not None:
        # Elsewhere 0 is added, and where it is outside all that is missing to `beyond`.
        rest = e.integer("subtract", beyond, total, DType.S32)
        total = e.integer("add", total, e.integer("multiply", outside, rest, DType.S32), DType.S32)
    return total.tile


def _dense(e: Emitter, x: Value) -> Value:
    """Return 32-bit integers in a tile of their own."""
    made = e.tile(1, "int32")
    nisa.tensor_copy(made, x.tile)
    return Value(made, DType.S32, vector=True)


def _position(e: Emitter, at: Indexing, place: int, row: int, factor: int) -> Value:
    """Return the places of positions along one of their dimensions, times a factor.

    Positions are numbered through; this one is (number // inner) % size. Numbers are known when
    the program is made, and counted on the chip run by run.
    """
    inner = math.prod(at.indices.shape[place + 1 :])
    size = at.indices.shape[place]
    made = e.tile(1, "int32")
    begin = 0
    values = [((row + i) // inner) % size for i in range(e.partitions)]
    if len(set(values)) == 1:
        nisa.memset(made, values[0] * factor)
        return Value(made, DType.S32, vector=True)
    # One row of numbers, turned into a column: places are below 2**24.
    line = nl.ndarray((1, e.partitions), dtype="int32", buffer=nl.sbuf)
    while begin < e.partitions:
        step = values[begin + 1] - values[begin] if begin + 1 < e.partitions else 0
        end = begin + 1
        while end < e.partitions and values[end] - values[end - 1] == step:
            end += 1
        nisa.iota(
            line[:, begin:end],
            pattern=[[step * factor, end - begin]],
            offset=values[begin] * factor,
        )
        begin = end
    nisa.dma_copy(dst=made, src=line)
    return Value(made, DType.S32, vector=True)


def run_gather(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Copy the window of each index, or access patterns where constants say the places."""
    (node,) = group.nodes
    e.at(node)
    operand, given = group.uses[node]
    require_form(node.dtype)
    known = copied_patterns(node)
    if known is not None:
        run_patterns(e, node, known, (in_hbm(e, operand, inputs), operand.view), outputs[node])
        return
    width = words(node.dtype)
    names = ("start_index_map", "operand_batching_dims", "start_indices_batching_dims")
    at = indexing(node, given.view, operand.view, node["slice_sizes"], names)
    source, indices = in_hbm(e, operand, inputs), in_hbm(e, given, inputs)
    result = contiguous(node.shape)
    offset_dims = node["offset_dims"]
    batch = [d for d in range(len(node.shape)) if d not in offset_dims]
    rows = collapsed(result.permuted(batch).dims)
    dropped = {*node["collapsed_slice_dims"], *node["operand_batching_dims"]}
    kept = [d for d in range(len(at.sizes)) if d not in dropped]
    for row, partitions in e.share(blocks_of(at.windows)):
        e.partitions = partitions
        starts = starts_of(
            e, at, indices, given.source.dtype, row, clamp=True, width=width, beyond=0
        )
        _copy_windows(e, node, at, kept, offset_dims, rows, (source, outputs[node]), starts, row)


def _copy_windows(
    e: Emitter,
    node: Node,
    at: Indexing,
    kept: list[int],
    offset_dims: tuple[int, ...],
    rows: Dims,
    tensors: tuple[NkiTensor, NkiTensor],
    starts: NkiTensor,
    row: int,
) -> None:
    source, target = tensors
    width = words(node.dtype)
    result = contiguous(node.shape)
    # The window as the operand and as the result have it, dimension by dimension.
    both = [
        (at.sizes[d], at.whole.strides[d], result.strides[o])
        for d, o in zip(kept, offset_dims, strict=True)
        if at.sizes[d] > 1
    ]
    outer, inner = divided(both, HELD[node.dtype], width)
    for offset, shift in outer:
        size = math.prod(n for n, _, _ in inner)
        pairs = [[1, e.partitions], *[[s * width, n] for n, s, _ in inner]]
        pairs += [[1, width]] if width > 1 else []
        pairs += [[1, 1]] if len(pairs) == 1 else []
        tile = nl.ndarray((e.partitions, size * width), dtype=HELD[node.dtype], buffer=nl.sbuf)
        moved = source.ap(pairs, offset=offset * width, vector_offset=starts)
        nisa.dma_copy(dst=tile, src=moved)
        columns = collapsed(tuple((n, s) for n, _, s in inner))
        leaf = Leaf(target, node.dtype, shift, rows, columns)
        _store_words(leaf, tile, row, e.partitions, size, width)


def divided(
    both: list[tuple[int, int, int]], kind: str, width: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Return offsets of parts of a window on both sides, and what a part is, so that it fits."""
    itemsize = info(kind).itemsize * width
    inner = list(both)
    outer = [(0, 0)]
    while math.prod(n for n, _, _ in inner) * itemsize > ROOM and inner:
        n, a, b = inner.pop(0)
        rest = math.prod(m for m, _, _ in inner) * itemsize
        if rest <= ROOM:
            # Parts of equal size, so that one pattern fits all.
            most = max(1, ROOM // rest)
            while n % most:
                most -= 1
            inner.insert(0, (most, a, b))
            outer = [(x + i * a, y + i * b) for x, y in outer for i in range(0, n, most)]
            break
        outer = [(x + i * a, y + i * b) for x, y in outer for i in range(n)]
    return outer, inner


def _store_words(
    leaf: Leaf, tile: NkiTensor, row: int, partitions: int, columns: int, width: int
) -> None:
    """Write a tile of whole elements, both words of 64-bit integers."""
    for first, left, outer, inner, offset in pieces(leaf, row, partitions, 0, columns):
        height, wide = size_of(outer), size_of(inner)
        part = tile[first : first + height, left * width : (left + wide) * width]
        nisa.dma_copy(dst=pattern(leaf.tensor, (*outer, *inner), offset, width), src=part)
