"""The simulation: instructions in queues, transfers on DMA engines, in the order of time.

Every queue is worked through in order. An instruction begins when its queue is free and everything
that it waits for has ended; then it takes the ports and DMA engines that it needs, first come first
served. What began earlier is looked at earlier, so that one pass over the program is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from neuronxcc.perf.dependences import CROSS, OWN, Edges, Orders
from neuronxcc.perf.model import PSUM_PORT, SBUF_PORT, Cost
from neuronxcc.perf.stream import GPSIMD, QUEUES, Ints

__all__ = ["Timeline", "simulate", "simulate_listed"]

_MAKERS = 2  # units of a core that make descriptors


class Timeline(NamedTuple):
    """When everything happens, in picoseconds.

    Attributes:
        start: of each instruction; of a transfer when its queue takes it up.
        end: when its results can be read.
        cause: what its start waited for last: another instruction, -1 for the program's begin.
        moves: of each transfer its instruction, and when it asks for DMA engines, in the order in
            which they are given.
        state: of each transfer what starts and ends don't show and later transfers may depend on:
            how unevenly it leaves the DMA engines and the units that make descriptors taken, as a
            fingerprint; 0 where evenly.
    """

    start: Ints
    end: Ints
    cause: Ints
    moves: Ints
    state: Ints

    @property
    def total(self) -> int:
        """Until everything has ended."""
        return int(self.end.max(initial=0))


class _Core:
    """What the queues of a core share."""

    __slots__ = ("dma", "even", "makers", "moves", "psum", "sbuf", "state")

    def __init__(self, engines: int, moves: list[int], state: list[int]) -> None:
        self.moves, self.state = moves, state  # see `Timeline`
        self.dma = [0] * engines  # when each DMA engine is free, ascending
        self.even = True  # all of them at the same time
        self.makers = [0] * _MAKERS
        self.sbuf = self.psum = 0

    def hold(self, ports: int, begin: int, issue: int) -> int:
        """Take ports for a time from the first moment on at which they are free; return it."""
        if ports & SBUF_PORT:
            begin = max(begin, self.sbuf)
        if ports & PSUM_PORT:
            begin = max(begin, self.psum)
        if ports & SBUF_PORT:
            self.sbuf = begin + issue
        if ports & PSUM_PORT:
            self.psum = begin + issue
        return begin

    def move(self, number: int, issued: int, cost: Cost, free: list[int], gpsimd: int) -> int:
        """Return when a transfer has ended.

        Args:
            number: of the instruction.
            issued: when its queue is done with it.
            cost: of the transfer.
            free: when each queue is free.
            gpsimd: the number of GpSimd's, which makes the descriptors of some transfers and does
                nothing else meanwhile.
        """
        arrival = issued + cost.start
        if cost.maker == 1:
            makers = self.makers
            unit = makers.index(min(makers))
            makers[unit] = max(makers[unit], issued) + cost.making
            arrival = makers[unit] + cost.start
            self.state[number] = _fingerprint(makers, issued)
        elif cost.maker == 2:
            free[gpsimd] = max(free[gpsimd], issued) + cost.making
            arrival = free[gpsimd] + cost.start
        self.moves += (number, arrival)
        dma, count, moving = self.dma, cost.engines, cost.moving
        if count == len(dma) and self.even:
            end = max(dma[0], arrival) + moving
            dma[:] = [end] * count
            return end
        taken = [max(free_at, arrival) + moving for free_at in dma[:count]]
        dma[:count] = taken
        dma.sort()
        self.even = dma[0] == dma[-1]
        if not self.even:
            self.state[number] ^= _fingerprint(dma, issued)
        return max(taken)


def _fingerprint(free: list[int], now: int) -> int:
    """Return a number for when units are free, from now on: what is free already is free now."""
    return hash(tuple([at - now if at > now else 0 for at in sorted(free)]))


# One function for its speed: the loop is all that a large program passes through.
def simulate(  # noqa: C901, PLR0912, PLR0915
    work: Ints, costs: Sequence[Cost], queue: Ints, edges: Edges, semaphore: int, dma_engines: int
) -> Timeline:
    """Return when every instruction of a program without loops runs.

    Args:
        work: of each instruction.
        costs: by work.
        queue: of each instruction: its core times `len(QUEUES)`, and the number in `QUEUES`.
        edges: what it waits for.
        semaphore: picoseconds from the end of one queue's instruction to another queue's start.
        dma_engines: of a core.
    """
    count = len(work)
    kinds = len(QUEUES)
    queues = int(queue.max(initial=0)) + 1
    order = np.argsort(queue, kind="stable")
    bounds = np.searchsorted(queue[order], np.arange(queues + 1))
    members = [order[bounds[q] : bounds[q + 1]].tolist() for q in range(queues)]
    works, first, other = work.tolist(), edges.first.tolist(), edges.other.tolist()
    own = edges.own.tolist()
    start, seen, cause = [0] * count, [-1] * count, [-1] * count  # `seen`: end plus the semaphore
    # One more than there are queues: a core without instructions of GpSimd still has one.
    free, last, ended = [0] * (queues + kinds), [-1] * queues, [0] * queues
    at = [0] * queues
    waits: dict[int, list[int]] = {}
    asked: list[int] = []
    state = [0] * count
    cores = [_Core(dma_engines, asked, state) for _ in range(-(-queues // kinds))]
    heap: list[tuple[int, int, int]] = []
    ready = [q for q in range(queues) if members[q]]
    while True:
        while ready:
            q = ready.pop()
            i = members[q][at[q]]
            begin, why = free[q], last[q]
            for d in other[first[i] : first[i + 1]]:
                when = seen[d]
                if when < 0:
                    waits.setdefault(d, []).append(q)
                    break
                if when > begin:
                    begin, why = when, d
            else:
                d = own[i]
                if d >= 0 and seen[d] - semaphore > begin:
                    begin, why = seen[d] - semaphore, d
                cause[i] = why
                heappush(heap, (begin, i, q))
        if not heap:
            break
        begin, i, q = heappop(heap)
        begin = max(begin, free[q])
        cost = costs[works[i]]
        issue, latency, ports, moves = cost[:4]
        if ports:
            begin = cores[q // kinds].hold(ports, begin, issue)
        start[i] = begin
        free[q] = begin + issue
        if moves:
            gpsimd = q // kinds * kinds + GPSIMD
            end = cores[q // kinds].move(i, begin + issue, cost, free, gpsimd)
            # A semaphore counts the transfers of a queue, so that they end in order.
            end = ended[q] = max(end, ended[q])
        else:
            end = begin + issue + latency
        seen[i] = end + semaphore
        last[q] = i
        at[q] += 1
        if at[q] < len(members[q]):
            ready.append(q)
        woken = waits.pop(i, None)
        if woken is not None:
            ready += woken
    assert not waits, "an instruction waits for a later one"
    ends = np.array(seen, np.int64) - semaphore
    return Timeline(_column(start), ends, _column(cause), _pairs(asked), _column(state))


def _column(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _pairs(asked: list[int]) -> Ints:
    return np.array(asked, np.int64).reshape(-1, 2)


def simulate_listed(  # noqa: C901 (a loop that all large programs pass through)
    work: Ints, costs: Sequence[Cost], queue: Ints, orders: Orders, semaphore: int, dma_engines: int
) -> Timeline:
    """Return when every instruction runs if a compiler orders what each engine does.

    Whenever an engine is free it takes, of the instructions that are ready, the first one in the
    order of the program: list scheduling, as compilers do it.

    Args:
        work: of each instruction.
        costs: by work.
        queue: of each instruction: its core times `len(QUEUES)`, and the number in `QUEUES`.
        orders: who waits for it.
        semaphore: picoseconds from the end of one queue's instruction to another queue's start.
        dma_engines: of a core.
    """
    count, kinds = len(work), len(QUEUES)
    queues = int(queue.max(initial=0)) + 1
    first, after, kind = orders.first.tolist(), orders.after.tolist(), orders.kind.tolist()
    missing = np.bincount(orders.after, minlength=count).tolist()
    works, whose = work.tolist(), queue.tolist()
    start, ends, cause, ready = [0] * count, [0] * count, [-1] * count, [0] * count
    free, last, ended = [0] * (queues + kinds), [-1] * queues, [0] * queues
    waiting: list[list[int]] = [[] for _ in range(queues)]
    asked: list[int] = []
    state = [0] * count
    cores = [_Core(dma_engines, asked, state) for _ in range(-(-queues // kinds))]
    # (when, an instruction that becomes ready or `count` for a queue that becomes free, queue)
    heap = [(0, i, q) for i, q in enumerate(whose) if not missing[i]]
    while heap:
        now, i, q = heappop(heap)
        if i < count:
            if not waiting[q] and free[q] > now:
                heappush(heap, (free[q], count, q))
            heappush(waiting[q], i)
        if free[q] > now or not waiting[q]:
            if waiting[q] and i == count:
                heappush(heap, (free[q], count, q))
            continue
        i = heappop(waiting[q])
        cost = costs[works[i]]
        core = cores[q // kinds]
        begin = core.hold(cost.ports, now, cost.issue)
        start[i], free[q] = begin, begin + cost.issue
        end = free[q] + cost.latency
        if cost.engines:
            gpsimd = q // kinds * kinds + GPSIMD
            end = ended[q] = max(core.move(i, free[q], cost, free, gpsimd), ended[q])
        ends[i] = end
        if ready[i] < begin and last[q] >= 0:
            cause[i] = last[q]
        last[q] = i
        if waiting[q]:
            heappush(heap, (free[q], count, q))
        for edge in range(first[i], first[i + 1]):
            other, how = after[edge], kind[edge]
            when = end + semaphore if how == CROSS else end if how == OWN else begin
            if when >= ready[other]:
                ready[other], cause[other] = when, i
            missing[other] -= 1
            if not missing[other]:
                heappush(heap, (ready[other], other, whose[other]))
    return Timeline(_column(start), _column(ends), _column(cause), _pairs(asked), _column(state))
