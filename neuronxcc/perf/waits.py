"""Which instructions wait for a semaphore: an engine that waits takes a while to go on.

An engine that has waited for an instruction of another queue knows that all earlier ones of that
queue have ended, so that only what goes beyond that costs a wait. It is decided block by block, as
a compiler places semaphores: each iteration of a loop has the waits of every other one.
"""

from __future__ import annotations

import numpy as np

from neuronxcc.perf.dependences import Flat, pairs_of
from neuronxcc.perf.stream import ENGINES, QUEUES, Block, Ints, Stream, Work

__all__ = ["mark", "mark_waits"]


def mark_waits(stream: Stream) -> None:
    """Say of every instruction of a stream whether it waits."""
    known = {work: number for number, work in enumerate(stream.works)}
    blocks = [stream.body]
    seen: set[int] = set()
    while blocks:
        block = blocks.pop()
        if id(block) not in seen:
            seen.add(id(block))
            mark(block, known)
            blocks += [loop.body for _, loop in block.loops]
    stream.works = list(known)


def mark(block: Block, works: dict[Work, int]) -> None:
    """Say of every instruction of a block, without its loops, whether it waits.

    Args:
        block: it is changed.
        works: numbers by work; those of instructions that wait are added.
    """
    if not len(block.work):
        return
    listed = list(works)
    # An engine's transfers end by themselves, as those of a queue of their own.
    group = np.array(
        [2 * (w.core * len(QUEUES) + w.queue) + (w.transfer is not None) for w in listed], np.int64
    )
    engine = np.array([w.transfer is None and w.queue < len(ENGINES) for w in listed], bool)
    waits = _waiting(block, group[block.work], engine[block.work])
    for number in np.unique(block.work[waits]).tolist():
        work = listed[number]._replace(waits=True)
        block.work[waits & (block.work == number)] = works.setdefault(work, len(works))


def _waiting(block: Block, group: Ints, engine: np.ndarray) -> np.ndarray:
    """Return which instructions of a block wait.

    Args:
        block: the block.
        group: of each instruction, who keeps its order.
        engine: which ones an engine runs.
    """
    count = len(block.work)
    flat = Flat(
        block.work, block.line, block.event, block.cell, block.writes, block.touch, block.tile
    )  # fmt: skip
    before, after, _ = pairs_of(flat)
    other = (group[before] != group[after]) & engine[after]
    before, after = before[other], after[other]
    who = group[after] * (int(group.max(initial=0)) + 1) + group[before]
    order = np.lexsort((before, after, who))
    before, after, who = before[order], after[order], who[order]
    # How far a queue is known to be done: the most so far, of each pair of queues.
    reached = np.unique(who, return_inverse=True)[1] * (count + 1) + before
    known = np.append(-1, np.maximum.accumulate(reached)[:-1])[: len(reached)]
    waits = np.zeros(count, bool)
    waits[after[reached > known]] = True
    return waits
