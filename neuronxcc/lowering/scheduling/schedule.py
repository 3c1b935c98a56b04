"""The order of steps: as the program has it, or another that needs less memory at once."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar


class Task(Protocol):
    """The facts about a step that ordering needs. Memory is anything hashable."""

    @property
    def reads(self) -> Sequence[Hashable]:
        """Memory that it reads."""

    @property
    def writes(self) -> Sequence[Hashable]:
        """Memory that it writes."""


T = TypeVar("T", bound=Task)


def dependencies(tasks: Sequence[Task], chains: Sequence[Sequence[int]] = ()) -> list[set[int]]:
    """For every task the earlier ones that must have run: they touch the same memory.

    `chains` are tasks that stay in the order given, whatever they touch.
    """
    needs: list[set[int]] = [set() for _ in tasks]
    writer: dict[Hashable, int] = {}
    readers: dict[Hashable, list[int]] = {}
    for number, task in enumerate(tasks):
        for memory in task.reads:
            if memory in writer:
                needs[number].add(writer[memory])
            readers.setdefault(memory, []).append(number)
        for memory in task.writes:
            if memory in writer:
                needs[number].add(writer[memory])
            needs[number].update(readers.pop(memory, ()))
            writer[memory] = number
        needs[number].discard(number)
    for chain in chains:
        for before, after in pairwise(chain):
            needs[after].add(before)
    return needs


class _Thrifty:
    """See `thrifty`. The heap may hold entries that have been replaced by later ones."""

    def __init__(
        self, tasks: Sequence[Task], needs: Sequence[set[int]], nbytes: Mapping[Hashable, int]
    ) -> None:
        self.nbytes = nbytes
        self.touched = [{m for m in (*t.reads, *t.writes) if m in nbytes} for t in tasks]
        # For memory: the tasks that have yet to touch it.
        self.touching: dict[Hashable, set[int]] = {}
        for number, memories in enumerate(self.touched):
            for memory in memories:
                self.touching.setdefault(memory, set()).add(number)
        self.live: set[Hashable] = set()
        self.waiting = [len(need) for need in needs]
        self.users: list[list[int]] = [[] for _ in tasks]
        for number, need in enumerate(needs):
            for before in need:
                self.users[before].append(number)
        self.ready = {number for number, count in enumerate(self.waiting) if not count}
        self.heap = [(self.growth(number), number) for number in self.ready]
        heapq.heapify(self.heap)

    def growth(self, number: int) -> int:
        """Bytes that a task adds to the memory in use, when it has run."""
        memories = self.touched[number]
        born = sum(self.nbytes[m] for m in memories if m not in self.live)
        return born - sum(self.nbytes[m] for m in memories if len(self.touching[m]) == 1)

    def run(self) -> list[int]:
        """The order."""
        order: list[int] = []
        while self.heap:
            cost, number = heapq.heappop(self.heap)
            if number in self.ready and cost == self.growth(number):
                order.append(number)
                for other in self._take(number):
                    heapq.heappush(self.heap, (self.growth(other), other))
        assert len(order) == len(self.waiting)
        return order

    def _take(self, number: int) -> set[int]:
        """Run a task; returns the ready ones whose growth that changes."""
        self.ready.discard(number)
        changed: set[int] = set()
        for memory in self.touched[number]:
            fresh = memory not in self.live
            self.live.add(memory)
            self.touching[memory].discard(number)
            if fresh or len(self.touching[memory]) == 1:
                changed |= self.touching[memory] & self.ready
        for user in self.users[number]:
            self.waiting[user] -= 1
            if not self.waiting[user]:
                self.ready.add(user)
                changed.add(user)
        return changed


def thrifty(
    tasks: Sequence[Task], needs: Sequence[set[int]], nbytes: Mapping[Hashable, int]
) -> list[int]:
    """An order in which every next step is the one that adds least to the memory in use.

    Args:
        tasks: In an order that is valid, which decides between equals.
        needs: See `dependencies`.
        nbytes: Of memory that is in use from its first to its last task; other memory is free.
    """
    return _Thrifty(tasks, needs, nbytes).run()


def late(needs: Sequence[set[int]], order: Sequence[int]) -> list[int]:
    """The order with every task that depends on no other just before the first that needs it.

    Such tasks read arguments only, so waiting costs nothing: a backward pass computes much again
    from what the forward pass has saved.
    """
    result: list[int] = []
    waiting: set[int] = set()
    for number in order:
        if not needs[number]:
            waiting.add(number)
            continue
        wanted = needs[number] & waiting
        result += (*sorted(wanted), number)
        waiting -= wanted
    return [*result, *sorted(waiting)]


def peak(tasks: Sequence[Task], order: Sequence[int], nbytes: Mapping[Hashable, int]) -> int:
    """Bytes in use at once, at most, in an order."""
    last: dict[Hashable, int] = {}
    for position, number in enumerate(order):
        for memory in (*tasks[number].reads, *tasks[number].writes):
            last[memory] = position
    used = most = 0
    live: set[Hashable] = set()
    for position, number in enumerate(order):
        memories = {m for m in (*tasks[number].reads, *tasks[number].writes) if m in nbytes}
        used += sum(nbytes[m] for m in memories - live)
        live |= memories
        most = max(most, used)
        used -= sum(nbytes[m] for m in memories if last[m] == position)
    return most


def scheduled(
    tasks: Sequence[T], nbytes: Mapping[Hashable, int], chains: Sequence[Sequence[int]] = ()
) -> list[T]:
    """The tasks in the order given, or in one that needs less memory: thrifty, late, or both."""
    needs = dependencies(tasks, chains)
    given = list(range(len(tasks)))
    frugal = thrifty(tasks, needs, nbytes)
    orders = (given, late(needs, given), frugal, late(needs, frugal))
    best = min(orders, key=lambda order: peak(tasks, order, nbytes))  # the first of equals
    return [tasks[number] for number in best]
