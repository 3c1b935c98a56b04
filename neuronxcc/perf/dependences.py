"""Who waits for whom, of a whole program at once: from cells that are read and written to edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuronxcc.perf.stream import Ints

__all__ = ["Edges", "Flat", "edges_of"]


class Flat(NamedTuple):
    """A program without loops.

    Attributes:
        work: of each instruction, its number in the stream.
        line: likewise the user's.
        event: instruction of each access to a cell.
        cell: what is accessed.
        writes: 1 if it is written, 0 if it is read.
    """

    work: Ints
    line: Ints
    event: Ints
    cell: Ints
    writes: Ints


class Edges(NamedTuple):
    """What each instruction waits for.

    Attributes:
        first: where the others of each instruction begin in `other`, and at the end their number.
        other: an earlier instruction of another queue, or a transfer, whose end is waited for.
        own: the last instruction of the same engine whose result is read, -1 if none.
    """

    first: Ints
    other: Ints
    own: Ints


def edges_of(flat: Flat, queue: Ints, ordered: Ints, passes_on: Ints) -> Edges:
    """Return the edges between instructions that share a cell which one of them writes.

    Of several instructions of one queue only the last is waited for: queues end in order. Within
    one engine a read waits for the write, and everything else is kept in order by the engine.

    Args:
        flat: the program.
        queue: of each instruction; an engine's transfers are a queue of their own here.
        ordered: by queue, 1 if it is an engine, which keeps its own accesses in order.
        passes_on: by queue, 1 if its engine reads its own results without waiting.
    """
    count = len(flat.work)
    before, after, raw = _of_cells(flat, queue)
    same = queue[before] == queue[after]
    engine = ordered[queue[after]] == 1
    kept = ~same | ~engine | (raw & (passes_on[queue[after]] == 0))
    before, after, same = before[kept], after[kept], (same & engine)[kept]
    own = np.full(count, -1, np.int64)
    np.maximum.at(own, after[same], before[same])
    before, after = before[~same], after[~same]
    # The last of each queue.
    queues = int(queue.max(initial=0)) + 1
    key = after * queues + queue[before]
    order = np.lexsort((before, key))
    key, before, after = key[order], before[order], after[order]
    last = np.append(key[1:] != key[:-1], True) if len(key) else np.zeros(0, bool)
    before, after = before[last], after[last]
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(after, minlength=count), out=first[1:])
    return Edges(first, before, own)


def _of_cells(flat: Flat, queue: Ints) -> tuple[Ints, Ints, np.ndarray]:
    """Return who is waited for, who waits, and whether it reads what the other wrote."""
    if not len(flat.event):
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0, bool)
    # By cell, then in the order of the program; an instruction reads before it writes.
    order = np.lexsort((flat.event * 2 + flat.writes, flat.cell))
    event, cell = flat.event[order], flat.cell[order]
    write = flat.writes[order] == 1
    at = np.arange(len(order))
    new = np.append(True, cell[1:] != cell[:-1])
    begin = np.maximum.accumulate(np.where(new, at, 0))
    # An instruction does not wait for itself, however often it accesses a cell.
    fresh = np.append(True, event[1:] != event[:-1]) | new
    own = np.maximum.accumulate(np.where(fresh, at, 0))
    writer = _before(np.where(write, at, -1), begin, own)
    found = np.flatnonzero(writer >= 0)
    before = [event[writer[found]]]
    after = [event[found]]
    raw = [~write[found]]
    whose = queue[event]
    for number in np.unique(whose[~write]).tolist():
        reader = _before(np.where(~write & (whose == number), at, -1), begin, own)
        found = np.flatnonzero(write & (reader > writer))
        before.append(event[reader[found]])
        after.append(event[found])
        raw.append(np.zeros(len(found), bool))
    return np.concatenate(before), np.concatenate(after), np.concatenate(raw)


def _before(marked: Ints, begin: Ints, own: Ints) -> Ints:
    """Return for each place the last marked one before `own` in its group, -1 if none."""
    last = np.append(-1, np.maximum.accumulate(marked))[own]
    return np.where(last >= begin, last, -1)
