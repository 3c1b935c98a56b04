"""Who waits for whom, of a whole program at once: from cells that are read and written to edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuronxcc.perf.stream import Ints

__all__ = [
    "CROSS",
    "OWN",
    "PASSES",
    "Edges",
    "Flat",
    "Orders",
    "edges_of",
    "orders_of",
    "pairs_of",
]


class Flat(NamedTuple):
    """A program without loops.

    Attributes:
        work: of each instruction, its number in the stream.
        line: likewise the user's.
        event: instruction of each access to a cell.
        cell: what is accessed.
        writes: 1 if it is written, 0 if it is read.
        touch: instruction of some uses of tiles, the first and the last ones among them.
        tile: which tile.
    """

    work: Ints
    line: Ints
    event: Ints
    cell: Ints
    writes: Ints
    touch: Ints
    tile: Ints


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


class Orders(NamedTuple):
    """What each instruction waits for where no queue keeps an order.

    Attributes:
        first: where the instructions after each one begin in `after`, and at the end their number.
        after: a later instruction that waits for it.
        kind: of the wait: one of `PASSES`, `OWN` and `CROSS`.
    """

    first: Ints
    after: Ints
    kind: Ints


#: Waits for the other one's turn, for its end, and for its end and a semaphore.
PASSES, OWN, CROSS = range(3)


def edges_of(flat: Flat, queue: Ints, engine: Ints, passes_on: Ints) -> Edges:
    """Return the edges between instructions that share a cell which one of them writes.

    Of several instructions of one queue only the last is waited for: queues end in order. Within
    one engine a read waits for the write, and everything else is kept in order by the engine.

    Args:
        flat: the program.
        queue: of each instruction; an engine's transfers are a queue of their own here.
        engine: by queue, 1 if it is an engine, which keeps its own accesses in order.
        passes_on: by queue, 1 if its engine reads its own results without waiting.
    """
    count = len(flat.work)
    before, after, raw = pairs_of(flat)
    own = (queue[before] == queue[after]) & (engine[queue[after]] == 1)
    kept = ~own | (raw & (passes_on[queue[after]] == 0))
    before, after, own = before[kept], after[kept], own[kept]
    last_own = np.full(count, -1, np.int64)
    np.maximum.at(last_own, after[own], before[own])
    before, after = before[~own], after[~own]
    # The last of each queue.
    queues = int(queue.max(initial=0)) + 1
    key = after * queues + queue[before]
    order = np.lexsort((before, key))
    key, before, after = key[order], before[order], after[order]
    last = np.append(key[1:] != key[:-1], True) if len(key) else np.zeros(0, bool)
    return Edges(_starts(after[last], count), before[last], last_own)


def orders_of(flat: Flat, queue: Ints, engine: Ints, passes_on: Ints) -> Orders:
    """Return who waits for each instruction if every engine takes whatever is ready.

    Args:
        flat: the program.
        queue: see `edges_of`.
        engine: likewise.
        passes_on: likewise.
    """
    count = len(flat.work)
    before, after, raw = pairs_of(flat)
    own = (queue[before] == queue[after]) & (engine[queue[after]] == 1)
    passes = ~raw | (passes_on[queue[after]] == 1)
    kind = np.where(own, np.where(passes, PASSES, OWN), CROSS)
    order = np.lexsort((-kind, after, before))
    before, after, kind = before[order], after[order], kind[order]
    # Of two waits for one instruction the longer one counts.
    new = np.append(True, (before[1:] != before[:-1]) | (after[1:] != after[:-1]))[: len(before)]
    before, after, kind = before[new], after[new], kind[new]
    return Orders(_starts(before, count), after, kind)


def _starts(ordered: Ints, count: int) -> Ints:
    """Return where each number begins in an ascending array, and its length."""
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(ordered, minlength=count), out=first[1:])
    return first


def pairs_of(flat: Flat) -> tuple[Ints, Ints, np.ndarray]:
    """Return who is waited for, who waits, and whether it reads what the other wrote: by pair.

    An access waits for the last write before it, and the next write waits for it.
    """
    # By cell, then in the order of the program; an instruction reads before it writes.
    order = np.lexsort((flat.event * 2 + flat.writes, flat.cell))
    event, cell = flat.event[order], flat.cell[order]
    write = flat.writes[order] == 1
    count = len(order)
    at = np.arange(count)
    new = np.append(True, cell[1:] != cell[:-1])[:count]
    begin = np.maximum.accumulate(np.where(new, at, 0))
    # An instruction does not wait for itself, however often it accesses a cell.
    fresh = new | np.append(True, event[1:] != event[:-1])[:count]
    own = np.maximum.accumulate(np.where(fresh, at, 0))
    last = np.append(-1, np.maximum.accumulate(np.where(write, at, -1)))[own]
    follows = np.flatnonzero(last >= begin)
    # The same from the other end: the next write behind the instruction's own accesses.
    ends = np.append(np.flatnonzero(new)[1:], count)[np.cumsum(new) - 1]
    behind = np.append(np.flatnonzero(fresh)[1:], count)[np.cumsum(fresh) - 1]
    backwards = np.minimum.accumulate(np.append(np.where(write, at, count), count)[::-1])[::-1]
    following = backwards[behind]
    read = np.flatnonzero(~write & (following < ends))
    return (
        np.concatenate([event[last[follows]], event[read]]),
        np.concatenate([event[follows], event[following[read]]]),
        np.concatenate([~write[follows], np.zeros(len(read), bool)]),
    )
