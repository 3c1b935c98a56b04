"""Intervals of time: what they cover together."""

from __future__ import annotations

import numpy as np

from neuronxcc.perf.stream import Ints

__all__ = ["covered", "merged"]


def merged(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the intervals that some cover together, in order; those that touch are one."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    new = np.append(True, start[1:] > end[:-1])
    return start[new], end[np.append(new[1:], True)]


def covered(start: Ints, end: Ints) -> int:
    """Return how long intervals are together."""
    begin, until = merged(start, end)
    return int((until - begin).sum())
