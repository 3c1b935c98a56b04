"""A tape: many small pieces of work in a row, as an array of integers, run without Python between.

A tape of a million instructions is one array of some tens of megabytes: what instructions have in
common is a function, kept once; an instruction is its number, the user's line, and where the slots
of the function lie. `TapeWriter` makes tapes, `instructions` reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.ir.node import Literal
from neuronxcc.program.errors import NeffError

MOST_CHUNKS = 1 << 20  # of a group: no memory has so many partitions


@dataclass(frozen=True, slots=True)
class TapeLoop:
    """Runs a loop kernel.

    Attributes:
        kernel: Over one chunk if `lanes`, else over everything.
        lanes: It works lane by lane: it is called once per chunk of the group, and the pointer of
            slot i moves on by `advance[i]` bytes from chunk to chunk. What it does to one chunk
            and what other instructions of the group do to another one do not touch.
        advance: One number per slot, none if not `lanes`.
    """

    kernel: Kernel
    lanes: bool = False
    advance: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TapeProduct:
    """out[M, N] = a[K, M]^T b[K, N], or += if `accumulate`; slots: out, a, b.

    Sums are float32. They are added to the float32 value of `out` before they are rounded to it.

    Attributes:
        m, n, k: Extents.
        dtype: Of a and b: float32, bfloat16 or float16.
        out_dtype: Of out: float32 or bfloat16.
        out_strides: Elements from one of M, and from one of N, to the next.
        a_strides: The same of K and M.
        b_strides: The same of K and N.
        accumulate: Add to what is there.
    """

    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    out_strides: tuple[int, int]
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class TapeNative:
    """Calls a function of the fixed table `neuronxcc.program.natives.NATIVES`.

    Attributes:
        name: Of the function; it says how many slots there are and what it touches of each.
        params: Integers that it takes.
        lanes, advance: As of `TapeLoop`.
    """

    name: str
    params: tuple[int, ...] = ()
    lanes: bool = False
    advance: tuple[int, ...] = ()


TapeFunction = TapeLoop | TapeProduct | TapeNative


@dataclass(frozen=True, slots=True)
class TapeStep:
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


def slot_count(function: TapeFunction) -> int:
    """How many slots a function has; NeffError for a native function that does not exist."""
    match function:
        case TapeLoop():
            return len(function.kernel.slots)
        case TapeProduct():
            return 3
        case TapeNative():
            from neuronxcc.program.natives import native  # noqa: PLC0415 - few programs have any

            return len(native(function.name).declare(function.params))


def is_lanes(function: TapeFunction) -> bool:
    """Whether it is called chunk by chunk."""
    return not isinstance(function, TapeProduct) and function.lanes


def instructions(step: TapeStep) -> Instructions:
    """Find the instructions of a tape.

    Raises:
        NeffError: The code is no sequence of whole groups, or names what is not there.
    """
    data = step.code.array
    if data.dtype != np.int64 or data.ndim != 1:
        raise NeffError(f"the code of a tape is {step.code.type}, not one row of s64")
    words = [2 + 2 * slot_count(function) for function in step.functions]
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


class TapeWriter:
    """Collects the instructions of a tape."""

    def __init__(self) -> None:
        self._code = array("q")
        self._group = -1
        self._functions: dict[TapeFunction, int] = {}
        self._locations: dict[str, int] = {}

    def function(self, function: TapeFunction) -> int:
        """Return the number of a function; equal ones are one."""
        return self._functions.setdefault(function, len(self._functions))

    def location(self, location: str) -> int:
        """Return the number of a user's line."""
        return self._locations.setdefault(location, len(self._locations))

    def group(self, chunks: int) -> None:
        """Begin a group; 0 for functions that do not work lane by lane."""
        self._group = len(self._code)
        self._code.fromlist([0, chunks])

    def add(self, function: int, location: int, places: Iterable[int]) -> None:
        """Append an instruction to the group.

        Args:
            function: Its number.
            location: Its number.
            places: Buffer and byte offset of every slot, flat.
        """
        self._code[self._group] += 1
        self._code.fromlist([function, location, *places])  # twice as fast as `extend`

    def __len__(self) -> int:
        """Words so far."""
        return len(self._code)

    def step(self) -> TapeStep:
        """Return the tape."""
        code = np.frombuffer(self._code, np.int64) if self._code else np.empty(0, np.int64)
        return TapeStep(tuple(self._functions), Literal(code), tuple(self._locations))
