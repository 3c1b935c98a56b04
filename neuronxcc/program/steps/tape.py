"""A step that runs a tape: many small pieces of work in a row, as an array of integers.

A tape of a million instructions is one array of some tens of megabytes: what instructions have in
common is a function, kept once; an instruction is its number, the user's line, and where the slots
of the function lie. `TapeWriter` makes tapes, `instructions` reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.node import Literal
from neuronxcc.program.errors import NeffError
from neuronxcc.program.step import Code, Maker, Spec, Step
from neuronxcc.program.tape_functions import SlotReach, TapeFunction, TapeLoop
from neuronxcc.program.words import kernel_lines, operands_text, place

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


MOST_CHUNKS = 1 << 20  # of a group: no memory has so many partitions
MOST_BYTES = 1 << 48  # of a reach: sums of a few fit into 64 bits
MOST_ADVANCE = 1 << 40  # times MOST_CHUNKS fits into 64 bits, too
MOST_LOCATIONS = 1 << 24


@dataclass(frozen=True, slots=True)
class TapeStep(Step):
    """Runs the instructions of a tape in order.

    `code` is a one-dimensional s64 array of groups, one after another:

        [number of instructions, chunks], then for every instruction
        [number of its function, number of its location, (buffer, byte offset) of every slot]

    In a group with `chunks` of 1 or more all functions work lane by lane: every thread takes some
    of the chunks and runs, chunk by chunk, all instructions of the group on that chunk. In a group
    with 0 chunks no function does; each is run on all threads by its own split, one after another.

    Attributes:
        functions: By number.
        code: The groups.
        locations: The user's lines, by number, for errors.
    """

    functions: tuple[TapeFunction, ...]
    code: Literal
    locations: tuple[str, ...]

    def check(self, checker: Checker) -> None:
        slots = []
        for number, function in enumerate(self.functions):
            try:
                slots.append(function.reach(checker))
            except NeffError as error:
                raise NeffError(f"function {number}: {error}") from None
        _check_tape(self, slots, checker.bytes, checker.constants)

    def lines(self, *, kernels: bool) -> Iterator[str]:
        """Groups and their instructions, then the functions."""
        yield "tape"
        code = self.code.array
        words = [2 + 2 * function.slot_count() for function in self.functions]
        last = -1
        for start, number, chunks, group in zip(*instructions(self), strict=True):
            if group != last:
                yield f"  group of {chunks} chunks" if chunks else "  group"
                last = group
            location = self.locations[code[start + 1]]
            places = code[start + 2 : start + words[number]].tolist()
            operands = operands_text(tuple(zip(places[::2], places[1::2], strict=True)))
            yield f"    f{number}({operands}){place(location)}"
        for number, function in enumerate(self.functions):
            yield f"  f{number}: {function.text()}"
            if kernels and isinstance(function, TapeLoop):
                yield from (f"  {line}" for line in kernel_lines(function.kernel))

    def run(self, machine: Machine) -> None:
        """One instruction after another, one chunk after another."""
        # Who loads a program to run it natively does not wait for the reference.
        from neuronxcc.program.natives import NativeError  # noqa: PLC0415

        code = self.code.array
        memory = [machine.bytes(number) for number in range(len(machine.memory))]
        words = [2 * function.slot_count() for function in self.functions]
        for start, number, chunks, _ in zip(*instructions(self), strict=True):
            function = self.functions[number]
            places = code[start + 2 : start + 2 + words[number]].reshape(-1, 2)
            advance = function.advance if function.lanes else (0,) * len(places)
            for chunk in range(max(int(chunks), 1)):
                slots = [
                    memory[buffer][offset + chunk * by :]
                    for (buffer, offset), by in zip(places, advance, strict=True)
                ]
                try:
                    function.run(slots)
                except NativeError as error:
                    line = self.locations[code[start + 1]]
                    text = f"{error.what}; {line}; {error.remedy} [{error.code}]"
                    raise IndexError(text) from None

    def codes(self, far: Array) -> Iterator[Code]:
        return (code for code in self._codes(far) if code is not None)

    def _codes(self, far: Array) -> Iterator[Code | None]:
        """The loop kernel of each function; None for those that have none."""
        found = instructions(self) if far.any() else None
        for number, function in enumerate(self.functions):
            if not isinstance(function, TapeLoop):
                yield None
                continue
            slots: set[int] = set()
            if found is not None:
                starts = found.starts[found.functions == number]
                for slot in {store.access.slot for store in function.kernel.stores}:
                    buffers = self.code.array[starts + 2 + 2 * slot]
                    known = (buffers >= 0) & (buffers < len(far))
                    if known.all() and far[buffers].all():
                        slots.add(slot)
            yield function.kernel, frozenset(slots)

    def spec(self, maker: Maker) -> Spec:
        codes = self._codes(maker.far)
        pairs = zip(self.functions, codes, strict=True)
        return {
            "kind": "tape",
            "name": f"tape of {len(self.functions)} functions",
            "loc": "",
            "functions": [function.spec(maker, code) for function, code in pairs],
            "locations": self.locations,
            "code": bytes(self.code.content),
        }

    def summary(self) -> str:
        found = instructions(self).starts
        return f"tape of {len(found)} instructions, {len(self.functions)} functions"


class Instructions(NamedTuple):
    """Where things are in the code of a tape; arrays of int64 with one element per instruction.

    Attributes:
        starts: Position of the function's number; the location follows, then the places.
        functions: Numbers of the functions.
        chunks: Of the group.
        groups: Numbers of the groups, from 0.
    """

    starts: Array
    functions: Array
    chunks: Array
    groups: Array


def instructions(step: TapeStep) -> Instructions:
    """Find the instructions of a tape.

    Raises:
        NeffError: The code is no sequence of whole groups, or names what is not there.
    """
    data = step.code.array
    if data.dtype != np.int64 or data.ndim != 1:
        raise NeffError(f"the code of a tape is {step.code.type}, not one row of s64")
    words = [2 + 2 * function.slot_count() for function in step.functions]
    count, end = len(words), len(data)
    code = memoryview(step.code.content).cast("q")
    starts, chunks, sizes = array("q"), array("q"), array("q")
    at = 0
    while at < end:
        if at + 2 > end or code[at] < 1 or not 0 <= code[at + 1] <= MOST_CHUNKS:
            given = code[at : at + 2].tolist()
            raise NeffError(f"word {at} of a tape begins a group with {given}")
        size = code[at]
        chunks.append(code[at + 1])
        sizes.append(size)
        at += 2
        for _ in range(size):
            if at >= end:
                raise NeffError(f"a group of {size} instructions is cut off")
            number = code[at]
            if not 0 <= number < count:
                raise NeffError(f"word {at} of a tape names function {number} of {count}")
            starts.append(at)
            at += words[number]
        if at > end:
            raise NeffError("the last instruction of a tape is cut off")
    first = np.asarray(starts, np.int64)
    counts = np.asarray(sizes, np.int64)
    return Instructions(
        first,
        data[first],
        np.repeat(np.asarray(chunks, np.int64), counts),
        np.repeat(np.arange(len(counts)), counts),
    )


def _check_tape(
    step: TapeStep,
    slots: Sequence[tuple[SlotReach, ...]],
    sizes: Sequence[int],
    constants: Collection[int],
) -> None:
    """Check every instruction: whether all memory that it names is there.

    Vectorised, because a tape may have a million of them.

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
    advance = function.advance
    if len(advance) != (len(reach) if function.lanes else 0):
        raise NeffError(f"function {number} has {len(reach)} slots and {len(advance)} advances")
    if not all(abs(by) <= MOST_ADVANCE for by in advance) or not all(
        -MOST_BYTES <= slot.low <= slot.high <= MOST_BYTES for slot in reach
    ):
        raise NeffError(f"function {number} reaches beyond any memory")


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
            lanes = np.array([function.lanes for function in self.step.functions])
            wrong = lanes[self.found.functions] != (self.found.chunks > 0)
            self.refuse(wrong, everything, "a function in a group that it is not made for")

    def places(self, number: int, reach: tuple[SlotReach, ...]) -> None:
        """Where all instructions of one function work."""
        which = np.flatnonzero(self.found.functions == number)
        if not len(which):
            return
        starts, more = self.found.starts[which], np.maximum(self.found.chunks[which] - 1, 0)
        advance = self.step.functions[number].advance or (0,) * len(reach)
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
