"""Between HBM and tiles: access patterns of DMA, and transposes where rows do not continue."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from nki.device.emitter import PARTITIONS, Emitter, Value, chunks
from nki.device.resident import NotResidentError, Resident
from nki.device.types import HELD, words
from nki.device.views import Dims, View, boxes, split
from nki.tensor import NkiTensor

__all__ = [
    "Leaf",
    "leaf_of",
    "load",
    "pattern",
    "pieces",
    "place_of",
    "size_of",
    "storable",
    "store",
    "turn",
]


class Leaf(NamedTuple):
    """A tensor in HBM as the rows and columns of a kernel see it.

    Attributes:
        tensor: flat, or in SBUF.
        dtype: of its elements.
        offset: of the first element.
        rows: (size, stride) of the dimensions that are rows.
        columns: likewise.
    """

    tensor: NkiTensor | Resident
    dtype: DType
    offset: int
    rows: Dims
    columns: Dims

    @property
    def same_rows(self) -> bool:
        """All rows are the same."""
        return all(stride == 0 for _, stride in self.rows)

    @property
    def same_columns(self) -> bool:
        """All columns are the same."""
        return all(stride == 0 for _, stride in self.columns)


def leaf_of(
    tensor: NkiTensor | Resident, dtype: DType, view: View, rows: int, columns: int
) -> Leaf:
    """Return a view of a tensor as rows and columns."""
    found = split(view, rows, columns)
    assert found is not None, (view, rows, columns)
    return Leaf(tensor, dtype, view.offset, *found)


def pattern(tensor: NkiTensor | Resident, dims: Dims, offset: int, width: int = 1) -> NkiTensor:
    """Return an access pattern of a flat tensor.

    Args:
        tensor: in HBM.
        dims: (size, stride) in elements.
        offset: of the first element.
        width: items of an element.

    Raises:
        NotResidentError: the tensor is in SBUF.
    """
    if isinstance(tensor, Resident):
        raise NotResidentError(tensor.node)
    pairs = [[stride * width, size] for size, stride in dims]
    if width > 1:
        pairs.append([1, width])
    return tensor.ap(pairs or [[1, 1]], offset=offset * width)


def pieces(leaf: Leaf, row: int, rows: int, column: int, columns: int) -> Iterator[Any]:
    """Iterate over (first row, first column, dims of rows, dims of columns, offset) of boxes."""
    for first, offset, outer in boxes(leaf.rows, row, rows):
        for left, more, inner in boxes(leaf.columns, column, columns):
            yield first, left, outer, inner, leaf.offset + offset + more


def size_of(dims: Dims) -> int:
    """Return how many elements dimensions have."""
    return math.prod(size for size, _ in dims)


def load(e: Emitter, leaf: Leaf, row: int, column: int) -> Value:
    """Return a block of a tensor: the emitter's partitions and columns from a row and column on.

    What is the same in all columns is loaded once per row, as a vector.
    """
    vector = leaf.same_columns
    count = 1 if vector else e.columns
    columns: Dims = () if vector else leaf.columns
    if isinstance(leaf.tensor, Resident):
        block = (row, e.partitions, 0 if vector else column, count)
        place = leaf.tensor.place((leaf.rows, columns, leaf.offset), block)
        return Value(place, leaf.dtype, vector)
    kind, width = HELD[leaf.dtype], words(leaf.dtype)
    narrow = leaf._replace(columns=columns)
    if width == 1 and not vector and _turned(leaf):
        return Value(_load_turned(e, leaf, row, column), leaf.dtype)
    made = nl.ndarray((e.partitions, count * width), dtype=kind, buffer=nl.sbuf)
    for first, left, outer, inner, offset in pieces(narrow, row, e.partitions, column, count):
        height, wide = size_of(outer), size_of(inner)
        part = made[first : first + height, left * width : (left + wide) * width]
        nisa.dma_copy(dst=part, src=pattern(leaf.tensor, (*outer, *inner), offset, width))
    if width == 2:
        return Value(made.ap([[count * 2, e.partitions], [2, count]]), leaf.dtype, vector)
    return Value(made, leaf.dtype, vector)


def _turned(leaf: Leaf) -> bool:
    """Return whether neighbours in memory are rows: then tiles are loaded the other way round."""
    return (
        len(leaf.columns) == 1
        and abs(leaf.columns[0][1]) > 1
        and leaf.columns[0][0] > 1
        and len(leaf.rows) > 0
        and leaf.rows[-1][1] == 1
        and leaf.rows[-1][0] >= _ROWS
        and size_of(leaf.rows) * size_of(leaf.columns) >= _ELEMENTS
    )


# Below that an access pattern of single elements costs less than a transpose.
_ROWS, _ELEMENTS = 3, 704


def _load_turned(e: Emitter, leaf: Leaf, row: int, column: int) -> NkiTensor:
    kind = HELD[leaf.dtype]
    made = e.tile(e.columns, kind)
    other = leaf._replace(rows=leaf.columns, columns=leaf.rows)
    for at, size in chunks(e.columns, PARTITIONS):
        tile = nl.ndarray((size, e.partitions), dtype=kind, buffer=nl.sbuf)
        for first, left, outer, inner, offset in pieces(
            other, column + at, size, row, e.partitions
        ):
            part = tile[first : first + size_of(outer), left : left + size_of(inner)]
            nisa.dma_copy(dst=part, src=pattern(leaf.tensor, (*outer, *inner), offset))
        turn(e, tile, made[:, at : at + size])
    return made


def turn(e: Emitter, tile: NkiTensor, dst: NkiTensor) -> None:
    """Transpose a tile of at most 128 by 128 into another one, by the Tensor Engine."""
    turned = nl.ndarray((tile.shape[1], tile.shape[0]), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(turned, tile)
    e.copy(dst, turned)


def store(e: Emitter, leaf: Leaf, value: Any, row: int, column: int) -> None:
    """Write a block to HBM.

    Args:
        e: its partitions and columns are those of the block.
        leaf: where to.
        value: a value or a number.
        row: first row.
        column: first column.
    """
    if isinstance(leaf.tensor, Resident):
        _stay(e, leaf, value, row, column)
        return
    kind, width = HELD[leaf.dtype], words(leaf.dtype)
    tile = _pairs(e, value, kind) if width == 2 else storable(e, value, kind)
    for first, left, outer, inner, offset in pieces(leaf, row, e.partitions, column, e.columns):
        height, wide = size_of(outer), size_of(inner)
        part = tile[first : first + height, left * width : (left + wide) * width]
        nisa.dma_copy(dst=pattern(leaf.tensor, (*outer, *inner), offset, width), src=part)


def place_of(e: Emitter, leaf: Leaf, row: int, column: int) -> NkiTensor | None:
    """Return where a block of a tensor in SBUF is to be written; None for one in HBM."""
    if not isinstance(leaf.tensor, Resident):
        return None
    block = (row, e.partitions, column, e.columns)
    return leaf.tensor.place((leaf.rows, leaf.columns, leaf.offset), block, new=True)


def _stay(e: Emitter, leaf: Leaf, value: Any, row: int, column: int) -> None:
    """Let a block be in SBUF for who comes next."""
    place = place_of(e, leaf, row, column)
    assert place is not None
    e.copy(place, e.full(value, HELD[leaf.dtype]))


def storable(e: Emitter, value: Any, kind: str) -> NkiTensor:
    """Return a tile in SBUF that a transfer can read: of the stored type and all columns."""
    tile = e.full(value, kind)
    vector = isinstance(value, Value) and value.vector and e.columns > 1
    if tile.buffer is nl.psum or tile.dtype != kind or vector or not isinstance(value, Value):
        made = e.tile(e.columns, kind)
        e.copy(made, tile)
        return made
    return tile


def _pairs(e: Emitter, value: Any, kind: str) -> NkiTensor:
    """Return low and high words side by side."""
    tile = e.full(value, kind)
    made = e.tile(e.columns * 2, kind)
    low = made.ap([[e.columns * 2, e.partitions], [2, e.columns]])
    high = made.ap([[e.columns * 2, e.partitions], [2, e.columns]], offset=1)
    nisa.tensor_copy(low, tile)
    if kind == "uint32":
        nisa.memset(high, 0)
    else:
        nisa.tensor_scalar(high, tile, op0="less", operand0=0.0, op1="multiply", operand1=-1.0)
    return made
