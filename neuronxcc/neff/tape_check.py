"""Whether all memory that a tape names is there.

Vectorised, because a tape may have a million instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.neff.errors import NeffError
from neuronxcc.neff.natives import native
from neuronxcc.neff.tape import (
    TapeNative,
    TapeProduct,
    TapeStep,
    instructions,
    is_lanes,
)

MOST_EXTENT = 1 << 24  # of a product of a tape
MOST_BYTES = 1 << 48  # of a reach or an advance: sums of them fit into 64 bits
MOST_LOCATIONS = 1 << 24

_OPERANDS = (DType.F32, DType.BF16, DType.F16)
_RESULTS = (DType.F32, DType.BF16)


class SlotReach(NamedTuple):
    """What a function touches of a slot: bytes [low, high) from its pointer; nothing if equal."""

    low: int
    high: int
    written: bool


def product_slots(function: TapeProduct | TapeNative) -> tuple[SlotReach, ...]:
    """What a product or a native function touches of its slots.

    Raises:
        NeffError: Its parts do not fit each other.
    """
    if isinstance(function, TapeNative):
        declared = native(function.name).declare(function.params)
        return tuple(SlotReach(slot.low, slot.high, slot.written) for slot in declared)
    f = function
    if not all(1 <= extent <= MOST_EXTENT for extent in (f.m, f.n, f.k)):
        raise NeffError(f"a product of {f.m} x {f.n} x {f.k}")
    if f.dtype not in _OPERANDS or f.out_dtype not in _RESULTS:
        raise NeffError(f"a product of {f.dtype.value} to {f.out_dtype.value}")
    found = []
    for dtype, shape, strides, written in (
        (f.out_dtype, (f.m, f.n), f.out_strides, True),
        (f.dtype, (f.k, f.m), f.a_strides, False),
        (f.dtype, (f.k, f.n), f.b_strides, False),
    ):
        if not all(0 <= stride <= MOST_EXTENT for stride in strides):
            raise NeffError(f"a product with strides of {list(strides)}")
        if written and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
            raise NeffError("a product that writes several elements to one place")
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        found.append(SlotReach(0, (last + 1) * dtype.itemsize, written))
    return tuple(found)


def check_tape(
    step: TapeStep,
    slots: Sequence[tuple[SlotReach, ...]],
    sizes: Sequence[int],
    constants: Collection[int],
) -> None:
    """Check every instruction of a tape.

    Args:
        step: The tape.
        slots: For every function what it touches.
        sizes: Bytes of every buffer.
        constants: Buffers that must not be written to.

    Raises:
        NeffError: Names the instruction, counted from 0, its line, and what is wrong.
    """
    for number, (function, reach) in enumerate(zip(step.functions, slots, strict=True)):
        advance = () if isinstance(function, TapeProduct) else function.advance
        if len(advance) != (len(reach) if is_lanes(function) else 0):
            raise NeffError(f"function {number} has {len(reach)} slots and {len(advance)} advances")
        if not all(abs(by) <= MOST_BYTES for by in advance) or not all(
            -MOST_BYTES <= slot.low <= slot.high <= MOST_BYTES for slot in reach
        ):
            raise NeffError(f"function {number} reaches beyond any memory")
    if len(step.locations) > MOST_LOCATIONS:
        raise NeffError(f"a tape with {len(step.locations)} locations")
    found = instructions(step)
    code: Array = step.code.array
    lines = code[found.starts + 1] if len(found.starts) else found.starts

    def refuse(bad: Array, what: str) -> None:
        if bad.any():
            which = int(np.flatnonzero(bad)[0])
            line = int(lines[which])
            place = step.locations[line] if 0 <= line < len(step.locations) else "?"
            function = int(found.functions[which])
            raise NeffError(f"instruction {which} (function {function}, {place}): {what}")

    refuse((lines < 0) | (lines >= len(step.locations)), "there is no such location")
    lanes = np.array([is_lanes(function) for function in step.functions], bool)
    if len(found.functions):
        wrong = lanes[found.functions] != (found.chunks > 0)
        refuse(wrong, "a function in a group that it is not made for")
    size_of = np.asarray(sizes, np.int64)
    constant = np.isin(np.arange(len(size_of)), list(constants))
    for number, (function, reach) in enumerate(zip(step.functions, slots, strict=True)):
        mine = found.functions == number
        starts = found.starts[mine]
        if not len(starts):
            continue

        def spread(bad: Array, mine: Array = mine) -> Array:
            every = np.zeros(len(mine), bool)
            every[mine] = bad
            return every

        more = np.maximum(found.chunks[mine] - 1, 0)
        for position, slot in enumerate(reach):
            buffers, offsets = code[starts + 2 + 2 * position], code[starts + 3 + 2 * position]
            what = f"slot {position}"
            bad = (buffers < 0) | (buffers >= len(size_of))
            refuse(spread(bad), f"{what} is in a buffer that is not there")
            bad = (offsets < 0) | (offsets > MOST_BYTES)
            refuse(spread(bad), f"{what} has an offset outside of memory")
            low, high = slot.low, slot.high
            if low == high:
                low = high = 0
            by = function.advance[position] if is_lanes(function) else 0  # type: ignore[union-attr]
            if not _small(more, by):
                raise NeffError(f"function {number} advances beyond any memory")
            first = offsets + low + np.minimum(more * by, 0)
            last = offsets + high + np.maximum(more * by, 0)
            bad = (first < 0) | (last > size_of[buffers])
            refuse(spread(bad), f"{what} reaches beyond its buffer")
            if slot.written:
                refuse(spread(constant[buffers]), f"{what} is written to, but it is a constant")


def _small(more: Array, by: int) -> bool:
    return int(more.max()) * abs(by) <= MOST_BYTES << 8
