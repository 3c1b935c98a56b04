"""From the tensors that instructions use to cells: memory that is used as a whole.

Every access is a box of rows and columns: partitions and bytes on chip; in HBM the last dimension
of the tensor is the columns and the others together are the rows. A view whose elements are no box
counts as the smallest one around them, and one that a value of the run moves as all of its tensor.
Two boxes of one tensor share cells exactly where they meet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from neuronxcc.perf.stream import Ints
from nki.dtypes import info
from nki.memory import Storage
from nki.recording import RegisterForm, TileForm

__all__ = ["Boxes", "Cells", "boxes_of", "cells_of", "pitch_of", "unique_rows"]

_MOST = 1 << 20  # of rows times columns that the boxes of one tensor cut it into


class Boxes(NamedTuple):
    """Accesses to memory, all arrays of the same length.

    Attributes:
        memory: number of what is accessed.
        low_row: first row.
        high_row: behind the last row.
        low: first byte of a row.
        high: behind the last one.
    """

    memory: Ints
    low_row: Ints
    high_row: Ints
    low: Ints
    high: Ints


class Cells(NamedTuple):
    """Cells of boxes.

    Attributes:
        first: where the cells of each box begin in `cell`, and at the end their number.
        cell: numbers of cells.
        memory: numbers of the memories that have any, ascending.
        low: the first cell of each of them.
        high: behind the last one.
    """

    first: Ints
    cell: Ints
    memory: Ints
    low: Ints
    high: Ints


def pitch_of(storage: Storage) -> int:
    """Return the bytes of a row."""
    if storage.region.on_chip:
        return max(1, storage.pitch)
    return max(1, storage.shape[-1] * info(storage.dtype).itemsize) if storage.shape else 1


def boxes_of(
    form: TileForm | RegisterForm, numbers: Ints, bytes_: Ints, pitch: Ints, whole: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the boxes of accesses of one form: rows and columns, from and to.

    Args:
        form: of the accesses.
        numbers: of the storages, or registers.
        bytes_: places in them.
        pitch: bytes of a row, by storage.
        whole: all bytes of what the places count in, by storage.
    """
    if isinstance(form, RegisterForm):
        zeros = np.zeros_like(numbers)
        return zeros, zeros + 1, zeros, zeros + 1
    row = pitch[numbers]
    if form.indirect is not None:
        zeros = np.zeros_like(numbers)
        return zeros, -(-whole[numbers] // row), zeros, row
    first, low = np.divmod(bytes_, row)
    high = low + info(form.dtype).itemsize
    begin, end = first.copy(), first + 1
    for extent, stride in zip(form.shape, form.strides, strict=True):
        if extent == 1 or stride == 0:
            continue
        reach = stride * (extent - 1)
        is_rows = abs(stride) % row == 0
        rows = np.where(is_rows, reach // row if reach >= 0 else -(-reach // row), 0)
        columns = np.where(is_rows, 0, reach)
        begin += np.minimum(rows, 0)
        end += np.maximum(rows, 0)
        low = low + np.minimum(columns, 0)
        high = high + np.maximum(columns, 0)
    # Columns that go on in other rows: all of those rows.
    more = (low < 0) | (high > row)
    begin = np.where(more, begin + low // row, begin)
    end = np.where(more, end + (high - 1) // row, end)
    return begin, end, np.where(more, 0, low), np.where(more, row, high)


def cells_of(boxes: Boxes) -> Cells:
    """Return the cells of boxes; boxes of different memories have none in common.

    Args:
        boxes: in the order of their memories. Those of one memory are all different.
    """
    count = len(boxes.memory)
    table = np.stack([boxes.low_row, boxes.high_row, boxes.low, boxes.high], 1)
    cuts = np.flatnonzero(np.append(True, boxes.memory[1:] != boxes.memory[:-1])[:count])
    ends = np.append(cuts[1:], count)[: len(cuts)]
    # Most memories are used in the same ways as others, most often in one way only.
    known: dict[bytes, int] = {}
    shapes: list[tuple[list[Ints], int]] = [([np.zeros(1, np.int64)], 1)]
    shape = np.zeros(len(cuts), np.int64)
    for group in np.flatnonzero(ends - cuts > 1).tolist():
        part = table[cuts[group] : ends[group]]
        found = known.setdefault(part.tobytes(), len(shapes))
        if found == len(shapes):
            shapes.append(_atoms(_compressed(part)))
        shape[group] = found
    made = np.array([cells for _, cells in shapes], np.int64)[shape]
    base = np.cumsum(made) - made
    sizes = np.zeros(count, np.int64)
    groups = [np.flatnonzero(shape == number) for number in range(len(shapes))]
    for (lists, _), chosen in zip(shapes, groups, strict=True):
        sizes[cuts[chosen][:, None] + np.arange(len(lists))] = [len(cells) for cells in lists]
    first = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=first[1:])
    cell = np.zeros(int(first[-1]), np.int64)
    for (lists, _), chosen in zip(shapes, groups, strict=True):
        flat = np.concatenate(lists)
        cell[first[cuts[chosen]][:, None] + np.arange(len(flat))] = base[chosen][:, None] + flat
    return Cells(first, cell, boxes.memory[cuts], base, base + made)


def _compressed(boxes: Ints) -> Ints:
    """Return boxes with places counted in cuts instead of rows and bytes."""
    made = np.empty_like(boxes)
    for axis in (0, 2):
        edges = np.unique(boxes[:, axis : axis + 2])
        made[:, axis : axis + 2] = np.searchsorted(edges, boxes[:, axis : axis + 2])
    rows, columns = made[:, 1].max(), made[:, 3].max()
    if rows * columns > _MOST:
        made[:, 2:] = (0, 1)
    return np.ascontiguousarray(made)


def _atoms(boxes: Ints) -> tuple[list[Ints], int]:
    """Return the cells of each box, and how many there are: what the same boxes cover is one.

    Each box has a random number, and a cell is known by the sum of the numbers of its boxes. Were
    two sums equal by chance, two cells would be one, and an instruction might wait too long.
    """
    rows, columns = int(boxes[:, 1].max()), int(boxes[:, 3].max())
    tags = np.random.default_rng(len(boxes)).integers(1, 1 << 63, len(boxes), np.uint64)
    total: Any = np.zeros((rows + 1, columns + 1), np.uint64)
    r0, r1, c0, c1 = boxes.T
    with np.errstate(over="ignore"):
        np.add.at(total, (r0, c0), tags)
        np.add.at(total, (r1, c1), tags)
        np.subtract.at(total, (r0, c1), tags)
        np.subtract.at(total, (r1, c0), tags)
        total = total.cumsum(0, dtype=np.uint64).cumsum(1, dtype=np.uint64)[:rows, :columns]
    sums, numbers = np.unique(total, return_inverse=True)
    grid = numbers.reshape(rows, columns)
    found = [np.unique(grid[a:b, c:d]) for a, b, c, d in boxes.tolist()]
    return found, len(sums)


def unique_rows(table: Ints) -> tuple[Ints, Ints]:
    """Return the different rows of a table in order, and for each row its number among them."""
    if not len(table):
        return table, np.zeros(0, np.int64)
    order = np.lexsort(table.T[::-1])
    ordered = table[order]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    inverse = np.empty(len(table), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return ordered[new], inverse
