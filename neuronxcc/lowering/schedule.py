"""The order of steps: as the program has it, or another that needs less memory at once."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar


class Task(Protocol):
    """What has to be known of a step. Memory is anything hashable."""

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
        for before, after in zip(chain, chain[1:], strict=False):
            needs[after].add(before)
    return needs


def thrifty(
    tasks: Sequence[Task], needs: Sequence[set[int]], nbytes: dict[Hashable, int]
) -> list[int]:
    """An order in which every next step is the one that adds least to the memory in use.

    Args:
        tasks: In an order that is valid, which decides between equals.
        needs: See `dependencies`.
        nbytes: Of memory that is in use from its first to its last task; other memory is free.
    """
    touched = [{m for m in (*t.reads, *t.writes) if m in nbytes} for t in tasks]
    left: Counter[Hashable] = Counter(memory for memories in touched for memory in memories)
    live: set[Hashable] = set()
    waiting = [len(need) for need in needs]
    users: list[list[int]] = [[] for _ in tasks]
    for number, need in enumerate(needs):
        for before in need:
            users[before].append(number)

    def growth(number: int) -> int:
        born = sum(nbytes[m] for m in touched[number] if m not in live)
        return born - sum(nbytes[m] for m in touched[number] if left[m] == 1)

    ready = {number for number, count in enumerate(waiting) if not count}
    heap = [(growth(number), number) for number in ready]
    heapq.heapify(heap)
    order: list[int] = []
    touching: dict[Hashable, set[int]] = {}
    for number, memories in enumerate(touched):
        for memory in memories:
            touching.setdefault(memory, set()).add(number)
    while heap:
        cost, number = heapq.heappop(heap)
        if number not in ready or cost != growth(number):
            continue  # an entry that has been replaced
        ready.discard(number)
        order.append(number)
        changed: set[int] = set()
        for memory in touched[number]:
            fresh = memory not in live
            live.add(memory)
            left[memory] -= 1
            touching[memory].discard(number)
            if fresh or left[memory] == 1:
                changed |= touching[memory] & ready
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.add(user)
                changed.add(user)
        for other in changed:
            heapq.heappush(heap, (growth(other), other))
    assert len(order) == len(tasks)
    return order


def peak(tasks: Sequence[Task], order: Sequence[int], nbytes: dict[Hashable, int]) -> int:
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
    tasks: Sequence[T], nbytes: dict[Hashable, int], chains: Sequence[Sequence[int]] = ()
) -> list[T]:
    """The tasks in the order given, or in a thrifty one if that needs less memory."""
    needs = dependencies(tasks, chains)
    order = thrifty(tasks, needs, nbytes)
    given = range(len(tasks))
    if peak(tasks, order, nbytes) >= peak(tasks, given, nbytes):
        return list(tasks)
    return [tasks[number] for number in order]
