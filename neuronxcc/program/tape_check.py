"""Whether all memory that a tape names is there.

Vectorised, because a tape may have a million instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.tape import (
    TapeFunction,
    TapeNative,
    TapeProduct,
    TapeStep,
    instructions,
    is_lanes,
)

MOST_EXTENT = 1 << 24  # of a product of a tape
MOST_BYTES = 1 << 48  # of a reach: sums of a few fit into 64 bits
MOST_ADVANCE = 1 << 40  # times MOST_CHUNKS fits into 64 bits, too
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
        from neuronxcc.program.natives import native  # noqa: PLC0415 - few programs have any

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
        _check_function(number, function, reach)
    if len(step.locations) > MOST_LOCATIONS:
        raise NeffError(f"a tape with {len(step.locations)} locations")
    check = _Check(step, np.asarray(sizes, np.int64), constants)
    check.instructions()
    for number, reach in enumerate(slots):
        check.places(number, reach)


def _check_function(number: int, function: TapeFunction, reach: tuple[SlotReach, ...]) -> None:
    advance = _advance(function)
    if len(advance) != (len(reach) if is_lanes(function) else 0):
        raise NeffError(f"function {number} has {len(reach)} slots and {len(advance)} advances")
    if not all(abs(by) <= MOST_ADVANCE for by in advance) or not all(
        -MOST_BYTES <= slot.low <= slot.high <= MOST_BYTES for slot in reach
    ):
        raise NeffError(f"function {number} reaches beyond any memory")


def _advance(function: TapeFunction) -> tuple[int, ...]:
    return () if isinstance(function, TapeProduct) else function.advance


class _Check:
    """All instructions of a tape at once."""

    def __init__(self, step: TapeStep, sizes: Array, constants: Collection[int]) -> None:
        self.step = step
        self.sizes = sizes
        self.constant = np.isin(np.arange(len(sizes)), list(constants))
        self.found = instructions(step)
        self.code: Array = step.code.array
        self.lines = self.code[self.found.starts + 1]

    def refuse(self, bad: Array, which: Array, what: str) -> None:
        """Raise for the first of the instructions `which` that is `bad`."""
        if bad.any():
            first = int(which[np.flatnonzero(bad)[0]])
            line, locations = int(self.lines[first]), self.step.locations
            place = locations[line] if 0 <= line < len(locations) else "?"
            function = int(self.found.functions[first])
            raise NeffError(f"instruction {first} (function {function}, {place}): {what}")

    def instructions(self) -> None:
        """Their locations, and whether functions are in groups of their kind."""
        everything = np.arange(len(self.lines))
        bad = (self.lines < 0) | (self.lines >= len(self.step.locations))
        self.refuse(bad, everything, "there is no such location")
        if len(everything):
            lanes = np.array([is_lanes(function) for function in self.step.functions])
            wrong = lanes[self.found.functions] != (self.found.chunks > 0)
            self.refuse(wrong, everything, "a function in a group that it is not made for")

    def places(self, number: int, reach: tuple[SlotReach, ...]) -> None:
        """Where all instructions of one function work."""
        which = np.flatnonzero(self.found.functions == number)
        if not len(which):
            return
        starts, more = self.found.starts[which], np.maximum(self.found.chunks[which] - 1, 0)
        advance = _advance(self.step.functions[number]) or (0,) * len(reach)
        for position, (slot, by) in enumerate(zip(reach, advance, strict=True)):
            buffers = self.code[starts + 2 + 2 * position]
            offsets = self.code[starts + 3 + 2 * position]
            bad = (buffers < 0) | (buffers >= len(self.sizes))
            self.refuse(bad, which, f"slot {position} is in a buffer that is not there")
            bad = (offsets < 0) | (offsets > MOST_BYTES)
            self.refuse(bad, which, f"slot {position} has an offset outside of memory")
            # One that is not accessed must still point into the buffer.
            low, high = (slot.low, slot.high) if slot.low < slot.high else (0, 0)
            first = offsets + low + np.minimum(more * by, 0)
            last = offsets + high + np.maximum(more * by, 0)
            bad = (first < 0) | (last > self.sizes[buffers])
            self.refuse(bad, which, f"slot {position} reaches beyond its buffer")
            if slot.written:
                bad = self.constant[buffers]
                self.refuse(bad, which, f"slot {position} is written to, but it is a constant")
