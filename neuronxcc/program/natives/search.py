"""Searches: max8, find_index8, match_replace8, topk, nonzero_with_count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.natives.rows import reach, view
from neuronxcc.program.natives.table import Native, NativeSlot, Params, named

__all__ = ["NATIVES"]

_EIGHT = 8
_GROUP = 16
_MISSING = 0xFFFFFFFF
_LOWEST = -(1 << 31)


# max8(rows, size, out_bytes, x_bytes): the eight largest of each row, the first the largest; NaN is
# larger than everything. Slots: out float32 (rows, 8), x float32 (rows, size).


def _max8_slots(params: Params) -> tuple[NativeSlot, ...]:
    rows, size, out, x = named("rows, size, out_bytes, x_bytes", params, (1, _EIGHT, 0, 0))
    return reach(rows, out, 4 * _EIGHT, written=True), reach(rows, x, 4 * size)


def _max8(params: Params, slots: Sequence[Array]) -> None:
    rows, size, out, x = params
    ascending = np.sort(view(slots[1], rows, x, size, np.float32), axis=1)
    view(slots[0], rows, out, _EIGHT, np.float32)[:] = ascending[:, : -_EIGHT - 1 : -1]


# find_index8(rows, size, index_bytes, x_bytes, values_bytes): the first position of each of eight
# values in its row, 2^32 - 1 if it is not there; of equal values the second gets the second
# position. Slots: index uint32 (rows, 8), x float32 (rows, size), values float32 (rows, 8).


def _find_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, size, index_bytes, x_bytes, values_bytes"
    rows, size, index, x, values = named(names, params, (1, 1, 0, 0, 0))
    return (
        reach(rows, index, 4 * _EIGHT, written=True),
        reach(rows, x, 4 * size),
        reach(rows, values, 4 * _EIGHT),
    )


def _match(x: Array, values: Array, order: Sequence[int]) -> Array:
    found = np.full(values.shape, _MISSING, np.uint32)
    for lane in range(len(x)):
        taken: set[int] = set()
        for slot in order:
            places = np.flatnonzero(x[lane] == values[lane, slot]).tolist()
            at = next((place for place in places if place not in taken), None)
            if at is not None:
                taken.add(at)
                found[lane, slot] = at
    return found


def _find(params: Params, slots: Sequence[Array]) -> None:
    rows, size, index, x, values = params
    data = view(slots[1], rows, x, size, np.float32)
    wanted = view(slots[2], rows, values, _EIGHT, np.float32)
    view(slots[0], rows, index, _EIGHT, np.uint32)[:] = _match(data, wanted, range(_EIGHT))


# match_replace8(rows, size, out_bytes, index_bytes, x_bytes, values_bytes): finds in the same way,
# but the last of the eight values first, and copies x with a new value where one was found. Slots:
# out float32 (rows, size), index uint32 (rows, 8), x like out, values float32 (rows, 8), the new
# value float32.


def _replace_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, size, out_bytes, index_bytes, x_bytes, values_bytes"
    rows, size, out, index, x, values = named(names, params, (1, 1, 0, 0, 0, 0))
    return (
        reach(rows, out, 4 * size, written=True),
        reach(rows, index, 4 * _EIGHT, written=True),
        reach(rows, x, 4 * size),
        reach(rows, values, 4 * _EIGHT),
        NativeSlot(0, 4),
    )


def _replace(params: Params, slots: Sequence[Array]) -> None:
    rows, size, out, index, x, values = params
    data = view(slots[2], rows, x, size, np.float32).copy()
    wanted = view(slots[3], rows, values, _EIGHT, np.float32)
    found = _match(data, wanted, range(_EIGHT - 1, -1, -1))
    for row, positions in zip(data, found, strict=True):
        row[positions[positions != _MISSING]] = slots[4][:4].view(np.float32)[0]
    view(slots[0], rows, out, size, np.float32)[:] = data
    view(slots[1], rows, index, _EIGHT, np.uint32)[:] = found


# topk(rows, k, n, values_bytes, indices_bytes, src_bytes): of each group of 16 rows the k largest
# of its first n elements, element e being in row e % 16, column e / 16; every row of the group gets
# all of them, the largest last. NaN is less than everything. Of equal elements the first are chosen
# and come last. Slots: values (bits of bfloat16) and indices uint32 (rows, k), src (bits).


def _topk_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, k, n, values_bytes, indices_bytes, src_bytes"
    rows, k, n, values, indices, src = named(names, params, (_GROUP, 1, 1, 0, 0, 0))
    if rows % _GROUP or k > n or n >= 1 << 16:
        raise NeffError(f"topk of {k} out of {n} in {rows} rows")
    return (
        reach(rows, values, 2 * k, written=True),
        reach(rows, indices, 4 * k, written=True),
        reach(rows, src, 2 * -(-n // _GROUP)),
    )


def _topk(params: Params, slots: Sequence[Array]) -> None:
    rows, k, n, values, indices, src = params
    data = view(slots[2], rows, src, -(-n // _GROUP), np.uint16)
    for first in range(0, rows, _GROUP):
        snake = data[first : first + _GROUP].T.reshape(-1)[:n].copy()
        numbers = (snake.astype(np.uint32) << 16).view(np.float32)
        chosen = np.argsort(-numbers, kind="stable")[:k][::-1]
        group = slice(first, first + _GROUP)
        view(slots[0], rows, values, k, np.uint16)[group] = snake[chosen]
        view(slots[1], rows, indices, k, np.uint32)[group] = chosen


# nonzero_with_count(rows, step, size, mask, offset, padding, out_bytes, src_bytes): positions of
# the elements of which a bit of `mask` is set, plus `offset`, then `padding`, and at the end how
# many there are; in every `step`-th row. Slots: out int32 (rows, size + 1), src uint32.


def _nonzero_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, step, size, mask, offset, padding, out_bytes, src_bytes"
    least = (1, 1, 1, 0, _LOWEST, _LOWEST, 0, 0)
    rows, step, size, _, _, _, out, src = named(names, params, least)
    wide = max(params[3], params[4], params[5]) > 0xFFFFFFFF
    if wide:
        raise NeffError(f"the parameters {list(params)} are no ({names})")
    seen = -(-rows // step)
    farthest = (1 << 63) - 1  # as the executor has it
    return (
        reach(seen, min(step * out, farthest), 4 * (size + 1), written=True),
        reach(seen, min(step * src, farthest), 4 * size),
    )


def _nonzero(params: Params, slots: Sequence[Array]) -> None:
    rows, step, size, mask, offset, padding, out, src = params
    seen = -(-rows // step)
    result = view(slots[0], seen, step * out, size + 1, np.int32)
    for row, data in enumerate(view(slots[1], seen, step * src, size, np.uint32).copy()):
        positions = np.flatnonzero(data & np.uint32(mask))
        result[row] = np.int64(padding).astype(np.int32)
        result[row, : positions.size] = (positions + offset).astype(np.int32)
        result[row, size] = positions.size


NATIVES = {
    "max8": Native(_max8_slots, _max8),
    "find_index8": Native(_find_slots, _find),
    "match_replace8": Native(_replace_slots, _replace),
    "topk": Native(_topk_slots, _topk),
    "nonzero_with_count": Native(_nonzero_slots, _nonzero),
}
