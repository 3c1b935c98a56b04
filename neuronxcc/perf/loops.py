"""Loops: a few iterations are simulated, and the rest is what has been seen to repeat.

The argument that makes this exact: if everything that happens in a stretch of time is what happened
one period earlier, the state of the core at the end of the stretch is the state one period earlier,
and as long as there are iterations left the same follows. What is before the loop must have ended
by then, and what is after it must not have begun. Then a period may be put in as often as wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuronxcc.perf.dependences import Flat
from neuronxcc.perf.stream import Block, Ints, Loop

__all__ = ["Instance", "Unrolled", "repeats", "unroll"]

#: Iterations that are simulated at first, and periods that are looked for, in iterations.
FIRST = 16
_PERIODS = (1, 2, 3, 4)
_MULTIPLE = 12  # of all periods
# A program up to this size is simulated as it is.
SMALL = 20_000


class Instance(NamedTuple):
    """One run of a loop in the program that is simulated.

    Attributes:
        loop: number of the loop.
        first: its first instruction.
        size: instructions of one iteration.
        iterations: those that are simulated.
        left: iterations that are not.
        depth: how many loops are around it.
    """

    loop: int
    first: int
    size: int
    iterations: int
    left: int
    depth: int


@dataclass(slots=True)
class Unrolled:
    """A program without loops, and where they were."""

    flat: Flat
    instances: list[Instance]


def unroll(block: Block, most: dict[int, int]) -> Unrolled:
    """Return a block with at most so many iterations of each loop written out.

    Args:
        block: the block.
        most: by loop; those that are missing are written out wholly.
    """
    return _Unroll(most).block(block, 0)


def simulated(loop: Loop, most: int) -> int:
    """Return how many iterations are simulated: what is left is a multiple of all periods."""
    if loop.count <= most + _MULTIPLE:
        return loop.count
    return most + (loop.count - most) % _MULTIPLE


class _Unroll:
    def __init__(self, most: dict[int, int]) -> None:
        self._most = most

    def block(self, block: Block, depth: int) -> Unrolled:
        if not block.loops:
            flat = _part(block, 0, len(block.work))
            return Unrolled(flat, [])
        parts: list[Flat] = []
        instances: list[Instance] = []
        size = begin = 0
        for end, loop in [*block.loops, (len(block.work), None)]:
            parts.append(_part(block, begin, end))
            size += end - begin
            begin = end
            if loop is None:
                continue
            body = self.block(loop.body, depth + 1)
            most = self._most.get(id(loop))
            count = loop.count if most is None else simulated(loop, most)
            length = len(body.flat.work)
            if not length or not count:
                continue
            parts.append(_times(body.flat, count))
            left = loop.count - count
            instances.append(Instance(id(loop), size, length, count, left, depth))
            for i in range(count):
                shift = size + i * length
                instances += [x._replace(first=x.first + shift) for x in body.instances]
            size += count * length
        return Unrolled(_joined(parts), instances)


def _part(block: Block, begin: int, end: int) -> Flat:
    low, high = np.searchsorted(block.event, (begin, end))
    first, last = np.searchsorted(block.touch, (begin, end))
    return Flat(
        block.work[begin:end],
        block.line[begin:end],
        block.event[low:high] - begin,
        block.cell[low:high],
        block.writes[low:high],
        block.touch[first:last] - begin,
        block.tile[first:last],
    )


def _times(flat: Flat, count: int) -> Flat:
    size = np.arange(count) * len(flat.work)
    shift, later = np.repeat(size, len(flat.event)), np.repeat(size, len(flat.touch))
    return Flat(
        np.tile(flat.work, count),
        np.tile(flat.line, count),
        np.tile(flat.event, count) + shift,
        np.tile(flat.cell, count),
        np.tile(flat.writes, count),
        np.tile(flat.touch, count) + later,
        np.tile(flat.tile, count),
    )


def _joined(parts: list[Flat]) -> Flat:
    shifts = np.cumsum([0, *(len(part.work) for part in parts)])
    return Flat(
        np.concatenate([part.work for part in parts]),
        np.concatenate([part.line for part in parts]),
        np.concatenate([part.event + s for part, s in zip(parts, shifts, strict=False)]),
        np.concatenate([part.cell for part in parts]),
        np.concatenate([part.writes for part in parts]),
        np.concatenate([part.touch + s for part, s in zip(parts, shifts, strict=False)]),
        np.concatenate([part.tile for part in parts]),
    )


class Repeat(NamedTuple):
    """A period of time that is to be put in.

    Attributes:
        at: when.
        length: of one period, in picoseconds.
        times: how often it is put in.
    """

    at: int
    length: int
    times: int


def repeats(
    instance: Instance, start: Ints, end: Ints, state: Ints, semaphore: int
) -> Repeat | None:
    """Return the period of a loop; None if none is certain.

    Args:
        instance: the loop.
        start: of all instructions of the program.
        end: likewise.
        state: likewise, of what starts and ends don't show; see `Timeline`.
        semaphore: picoseconds that pass until other queues know of an end.
    """
    first, size, count = instance.first, instance.size, instance.iterations
    last = first + size * count
    starts = start[first:last].reshape(count, size)
    ends = end[first:last].reshape(count, size)
    states = state[first:last].reshape(count, size)
    # Ends of what is before each iteration, and starts of what is after it.
    ended = np.maximum.accumulate(end)
    begins = np.minimum.accumulate(start[::-1])[::-1]
    for period in _PERIODS:
        if count <= period + 2:
            break
        moved = starts[period:] - starts[:-period]
        length = moved[:, 0]
        even = (moved == length[:, None]).all(1)
        even &= (ends[period:] - ends[:-period] == length[:, None]).all(1)
        even &= (states[period:] == states[:-period]).all(1)
        for low, high in _stretches(even, length):
            # An iteration has to be left: with the last one what repeats ends.
            begin, stop = first + low * size, first + min(high + period, count - 1) * size
            if stop <= begin:
                continue
            before = int(ended[begin - 1]) if begin else 0
            after = int(begins[stop])
            step = int(length[low])
            # What is under way at the end of the stretch must have begun within it.
            longest = int((end[begin:stop] - start[begin:stop]).max()) + semaphore
            if step > 0 and after - before >= 2 * step + longest:
                return Repeat(after - 1, step, instance.left // period)
    return None


def _stretches(even: np.ndarray, length: Ints) -> list[tuple[int, int]]:
    """Return where neighbours are even and equal: (first, behind the last)."""
    found: list[tuple[int, int]] = []
    begin = 0
    for i in range(1, len(even) + 1):
        if i < len(even) and even[i] and even[begin] and length[i] == length[begin]:
            continue
        if even[begin]:
            found.append((begin, i))
        begin = i
    return sorted(found, key=lambda pair: pair[0] - pair[1])
