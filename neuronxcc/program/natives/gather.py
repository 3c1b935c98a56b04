"""Movement by index or mask: gather, shuffle, sequence_bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.natives.rows import reach, view
from neuronxcc.program.natives.table import Native, NativeError, NativeSlot, Params, named

__all__ = ["NATIVES"]

_QUADRANT = 32
_KEEP = 255

# gather(rows, group, count, width, bound, itemsize, index_size, out_bytes, data_bytes,
# index_bytes): for every row `count` times `width` neighbouring elements of the row of `data` that
# has `bound` of them. Rows of a group share their indices: number i is in row i % group, column
# i / group. Slots: out, data (unsigned of `itemsize` bytes), index (unsigned of `index_size`).

_NAMES = (
    "rows, group, count, width, bound, itemsize, index_size, out_bytes, data_bytes, index_bytes"
)


def _gather_slots(params: Params) -> tuple[NativeSlot, ...]:
    rows, group, count, width, bound, itemsize, index_size, out, data, index = named(
        _NAMES, params, (1, 1, 1, 1, 1, 1, 2, 0, 0, 0)
    )
    known = itemsize in (1, 2, 4) and index_size in (2, 4)
    if not known or rows % group or max(bound, count, width) >= 1 << 31:
        raise NeffError(f"the parameters {list(params)} are no ({_NAMES})")
    return (
        reach(rows, out, count * width * itemsize, written=True),
        reach(rows, data, bound * itemsize),
        reach(rows, index, -(-count // group) * index_size),
    )


def _gather(params: Params, slots: Sequence[Array]) -> None:
    rows, group, count, width, bound, itemsize, index_size, out, data, index = params
    kind = f"u{itemsize}"
    results = view(slots[0], rows, out, count * width, kind)
    sources = view(slots[1], rows, data, bound, kind)
    indices = view(slots[2], rows, index, -(-count // group), f"u{index_size}").astype(np.int64)
    for first in range(0, rows, group):
        starts = indices[first : first + group].T.reshape(-1)[:count]
        columns = (starts[:, None] + np.arange(width)).reshape(-1)
        bad = columns[columns >= bound]
        if bad.size:
            raise NativeError(
                "NKI132",
                f"index {int(bad[0])} is out of bounds: it must be from 0 to below {bound}",
                "keep it in bounds, or ask for oob_mode.skip where the instruction has it",
            )
        results[first : first + group] = sources[first : first + group][:, columns]


# shuffle(rows, size, out_bytes, src_bytes, *mask): row r of out becomes row r - r % 32 +
# mask[r % 32] of src, or stays as it is where the mask is 255. Rows have `size` bytes.


def _shuffle_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, size, out_bytes, src_bytes, 32 of the mask"
    rows, size, out, src, *mask = named(names, params, (1, 1, 0, 0, *[0] * _QUADRANT))
    if size >= 1 << 32 or any(value >= _QUADRANT and value != _KEEP for value in mask):
        raise NeffError(f"the parameters {list(params)} are no ({names})")
    last = max((at for _, at in _pairs(rows, mask)), default=-1)
    return reach(rows, out, size, written=True), reach(last + 1, src, size)


def _pairs(rows: int, mask: Sequence[int]) -> list[tuple[int, int]]:
    """Which row of out becomes which row of src."""
    return [
        (row, row - row % _QUADRANT + mask[row % _QUADRANT])
        for row in range(rows)
        if mask[row % _QUADRANT] != _KEEP
    ]


def _shuffle(params: Params, slots: Sequence[Array]) -> None:
    rows, size, out, src, *mask = params
    pairs = _pairs(rows, mask)
    target = view(slots[0], rows, out, size, np.uint8)
    source = view(slots[1], max((at for _, at in pairs), default=-1) + 1, src, size, np.uint8)
    before = source.copy()
    for row, at in pairs:
        target[row] = before[at]


# sequence_bounds(size, is_float, end_bytes): a sequence of segments, which are runs of equal
# numbers other than 0. Each element gets the position of its segment's begin and, `end_bytes`
# further, of the element behind its end; elements that are 0 get `size` and -1. Slots: out, and
# segments, both float32 if is_float is 1, else int32.


def _bounds_slots(params: Params) -> tuple[NativeSlot, ...]:
    size, is_float, ends = named("size, is_float, end_bytes", params, (1, 0, 4))
    if is_float > 1:
        raise NeffError(f"the parameters {list(params)} are no (size, is_float, end_bytes)")
    return reach(2, ends, 4 * size, written=True), reach(1, 0, 4 * size)


def _bounds(params: Params, slots: Sequence[Array]) -> None:
    size, is_float, ends = params
    kind = np.float32 if is_float else np.int32
    start, end = view(slots[0], 2, ends, size, kind)
    segments = view(slots[1], 1, 0, size, kind)[0].copy()
    first = 0
    for at in range(size):
        if at and segments[at] != segments[at - 1]:
            first = at
        start[at], end[at] = size, -1
        if segments[at] != 0:
            start[at] = first
            end[first : at + 1] = at + 1


NATIVES = {
    "gather": Native(_gather_slots, _gather),
    "shuffle": Native(_shuffle_slots, _shuffle),
    "sequence_bounds": Native(_bounds_slots, _bounds),
}
