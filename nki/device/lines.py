"""Tensors as lines: one dimension as columns, and where each line has its extreme.

A line lies in one partition. Where there are few of them and they are long, as scores of a
vocabulary are, each lies over several partitions, so that all of them work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import nki.isa as nisa
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import PARTITIONS, Emitter, NoLoweringError, Value, require_form
from nki.device.groups import Use, is_number
from nki.device.transfers import Leaf, leaf_of, load, pattern
from nki.device.types import HELD
from nki.device.views import Dims, View
from nki.tensor import NkiTensor

__all__ = [
    "PART", "Line", "Spread", "extreme_of_spread", "first_place", "line", "line_operand",
    "loaded_spread", "spread_of", "wide_tile",
]  # fmt: skip

Tensors = Mapping[Node, NkiTensor]

PART: Final = 4096  # columns that are worked on at once, where parts can be
_BEYOND: Final = float(1 << 24)  # more than any position
_FEW: Final = 16  # lines that lie over several partitions
_LONG: Final = 1024  # columns of which a line has to have more for that
_FLOATS: Final = frozenset({DType.F32, DType.BF16, DType.F16})


class Line(NamedTuple):
    """A tensor with one dimension as columns.

    Attributes:
        leaf: its rows and columns.
        rows: how many.
        columns: how many.
    """

    leaf: Leaf
    rows: int
    columns: int


def line(tensor: NkiTensor, dtype: DType, view: View, dim: int) -> Line:
    """Return a view with a dimension as columns."""
    order = [d for d in range(len(view.shape)) if d != dim]
    rows = math.prod(view.shape[d] for d in order)
    columns = view.shape[dim]
    return Line(leaf_of(tensor, dtype, view.permuted([*order, dim]), rows, columns), rows, columns)


def line_operand(inputs: Tensors, use: Use, dim: int) -> Line:
    """Return an operand with a dimension as columns."""
    if is_number(use.source):
        raise NoLoweringError("all elements are the same number")
    require_form(use.source.dtype)
    return line(inputs[use.source], use.source.dtype, use.view, dim)


def wide_tile(e: Emitter, x: Value) -> NkiTensor:
    """Return a dense float32 tile."""
    if x.vector or x.tile.dtype != "float32":
        made = e.tile(e.columns, "float32")
        nisa.tensor_copy(made, e.full(x, "float32"))
        return made
    return x.tile


def first_place(
    e: Emitter, x: NkiTensor, extreme: NkiTensor, column: int, places: NkiTensor | None = None
) -> NkiTensor:
    """Return where each row of a block has its extreme, or NaN, for the first time.

    Args:
        e: the emitter.
        x: the block, float32.
        extreme: of each row: (partitions, 1).
        column: of the block's first one.
        places: what stands for the columns, by default their numbers.

    Returns:
        Columns as float32, (partitions, 1); beyond all of them where it is elsewhere.
    """
    columns = e.columns
    same, wrong, chosen = (e.tile(columns, "float32") for _ in range(3))
    nisa.tensor_scalar(same, x, op0="equal", operand0=extreme)
    nisa.tensor_tensor(wrong, x, x, op="not_equal")
    nisa.tensor_tensor(chosen, same, wrong, op="maximum")
    # Positions of the others are moved beyond all.
    away = e.tile(columns, "float32")
    nisa.tensor_scalar(away, chosen, op0="multiply", operand0=-_BEYOND, op1="add", operand1=_BEYOND)
    if places is None:
        places = e.tile(columns, "float32")
        nisa.iota(places, pattern=[[1, columns]], offset=column)
    far = e.tile(columns, "float32")
    nisa.tensor_tensor(far, places, away, op="add")
    made = e.tile(1, "float32")
    nisa.tensor_reduce(made, op="minimum", data=far, axis=(1,))
    return made


# --- few and long lines --------------------------------------------------------------------------


class Spread(NamedTuple):
    """Lines over several partitions each.

    Attributes:
        rows: how many lines.
        parts: partitions of each.
        width: columns of a partition; the last one of a line may have fewer.
    """

    rows: int
    parts: int
    width: int


def spread_of(source: Line) -> Spread | None:
    """Return how lines lie over all partitions, None where each one is to have its own."""
    leaf = source.leaf
    dense = leaf.columns == ((source.columns, 1),) and len(leaf.rows) <= 1
    if source.rows > _FEW or source.columns <= _LONG or not dense or leaf.dtype not in _FLOATS:
        return None
    parts = PARTITIONS // max(1, source.rows)
    width = math.ceil(source.columns / parts)
    return Spread(source.rows, math.ceil(source.columns / width), width) if width <= PART else None


def loaded_spread(e: Emitter, source: Line, spread: Spread, filler: float) -> NkiTensor:
    """Return lines over partitions, float32; where the last part of a line ends, a number.

    The emitter's partitions and columns are those of the tile afterwards.
    """
    rows, parts, width = spread
    leaf = source.leaf
    e.partitions, e.columns = rows * parts, width
    whole, rest = divmod(source.columns, width)
    step = leaf.rows[0][1] if leaf.rows else source.columns
    if not rest and step == source.columns:
        dense = leaf._replace(rows=((rows * parts, width),), columns=((width, 1),))
        return wide_tile(e, load(e, dense, 0, 0))
    tile = e.tile(width, HELD[leaf.dtype])
    if rest:
        nisa.memset(tile, filler)
    for row in range(rows):
        begin, at = leaf.offset + row * step, row * parts
        for first, count, columns in ((0, whole, width), (whole, 1, rest)):
            if count and columns:
                part = tile[at + first : at + first + count, 0:columns]
                dims: Dims = ((count, width), (columns, 1)) if count > 1 else ((columns, 1),)
                source_part = pattern(leaf.tensor, dims, begin + first * width)
                nisa.dma_copy(dst=part, src=source_part)
    return wide_tile(e, Value(tile, leaf.dtype))


def extreme_of_spread(e: Emitter, op: str, x: NkiTensor, spread: Spread) -> NkiTensor:
    """Return the first column of each line's extreme: (rows, 1) in float32.

    The emitter's partitions and columns are those of the result afterwards.

    Args:
        e: the emitter, whose partitions and columns are those of x.
        op: maximum or minimum.
        x: what `loaded_spread` has loaded, or has been made of that.
        spread: how it lies.
    """
    rows, parts, width = spread
    most = e.tile(1, "float32")
    nisa.tensor_reduce(most, op=op, data=x, axis=(1,))
    place = first_place(e, x, most, 0)
    # The parts of a line side by side.
    e.partitions, e.columns = rows, parts
    tops, places, begins, wholes = (e.tile(parts, "float32") for _ in range(4))
    nisa.dma_copy(dst=tops, src=most)
    nisa.dma_copy(dst=places, src=place)
    nisa.iota(begins, pattern=[[width, parts]], offset=0)
    nisa.tensor_tensor(wholes, places, begins, op="add")
    top = e.tile(1, "float32")
    nisa.tensor_reduce(top, op=op, data=tops, axis=(1,))
    made = first_place(e, tops, top, 0, wholes)
    e.columns = 1
    return made
