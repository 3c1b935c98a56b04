"""The memory plan: where each temporary lies in the scratchpad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and a vector of AVX-512


@dataclass
class Interval:
    """Memory of `nbytes` that is in use from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int
    offset: int = -1


def plan(intervals: Sequence[Interval]) -> int:
    """Give every interval an offset, none overlapping in both time and place.

    Greedy: the largest first, each into the smallest gap it fits in. Returns the bytes in all.
    """
    order = sorted(intervals, key=lambda i: (-i.nbytes, i.first, i.last))
    count = len(order)
    # Columns: first, last, offset, end; rows are filled as intervals are placed.
    placed = np.zeros((count, 4), np.int64)
    total = 0
    for number, interval in enumerate(order):
        size = -(-max(interval.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        rows = placed[:number]
        live = rows[(rows[:, 0] <= interval.last) & (rows[:, 1] >= interval.first)]
        interval.offset = _gap(live[np.argsort(live[:, 2], kind="stable")], size)
        placed[number] = (interval.first, interval.last, interval.offset, interval.offset + size)
        total = max(total, interval.offset + size)
    return total


def _gap(live: np.ndarray, size: int) -> int:
    """The offset of the smallest gap of that size between blocks sorted by offset."""
    if not len(live):
        return 0
    # The end of everything up to each block: blocks may lie beside each other in time.
    ends = np.concatenate(([0], np.maximum.accumulate(live[:, 3])))
    gaps = live[:, 2] - ends[:-1]
    fits = np.flatnonzero(gaps >= size)
    if len(fits):
        return int(ends[fits[np.argmin(gaps[fits])]])
    return int(ends[-1])


def peak(intervals: Sequence[Interval]) -> int:
    """Bytes in use at once at the worst step: what no plan can go below."""
    changes: dict[int, int] = {}
    for interval in intervals:
        changes[interval.first] = changes.get(interval.first, 0) + interval.nbytes
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - interval.nbytes
    used = most = 0
    for step in sorted(changes):
        used += changes[step]
        most = max(most, used)
    return most
