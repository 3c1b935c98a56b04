"""Collectives among the other steps: which go together, in which order, when each begins and ends.

All ranks of a group must do the same collectives in the same order, or they wait for each other for
ever. So what is decided here about buckets and order depends on what is the same on all ranks: the
graph's collectives, their order in it, their sizes, and which of them need results of others. When
a collective begins among other steps is each rank's own business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.emission.drafts import (
    CollectiveDraft,
    Draft,
    WaitDraft,
    has_collectives,
    has_effect,
)
from neuronxcc.lowering.fusion.cluster import Cluster
from neuronxcc.lowering.scheduling.schedule import dependencies

# Bytes of a bucket: a collective of less takes about as long as its two meetings of all ranks.
BUCKET = 4 << 20
# Bytes that collectives may have ready before anybody needs them, or one bucket if that is larger.
AHEAD = 32 << 20
# Steps that are done earlier than the program has them so that a collective can begin.
MOST_BROUGHT = 64

_BUCKETS = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER})


@dataclass(frozen=True)
class Facts:
    """The facts about a collective of the graph that all ranks know.

    Attributes:
        number: Its place among them, as the graph has it.
        needs: Numbers of those whose results it is made of, as bits.
        free: It needs arguments and pointwise work only: weights that are gathered.
    """

    number: int
    needs: int
    free: bool


def facts(graph: Graph) -> dict[Node, Facts]:
    """The facts about every collective of a prepared graph."""
    nodes = list(graph.nodes())
    found = [node for node in nodes if node.op in Group.COLLECTIVE]
    # Those without a channel come as they were made.
    found.sort(key=lambda node: (node.get("channel", math.inf), node.serial))
    numbers = {node: number for number, node in enumerate(found)}
    light = Group.ELEMENTWISE | Group.MOVEMENT | Group.LEAF
    needs: dict[Node, int] = {}
    free: dict[Node, bool] = {}
    result = {}
    for node in nodes:
        mask = 0
        for src in node.srcs:
            mask |= needs[src]
        alone = all(free[src] for src in node.srcs)
        if node in numbers:
            result[node] = Facts(numbers[node], mask, alone)
            mask |= 1 << numbers[node]
        needs[node] = mask
        free[node] = alone and node.op in light
    return result


def chain(known: Mapping[Node, Facts]) -> list[Node]:
    """The order in which collectives begin.

    As the graph has them, but what needs no results of others goes before what stands in front of
    it, so that a layer's weights are on their way while the layer before is computed.
    """
    nodes = sorted(known, key=lambda node: known[node].number)
    runs: list[list[Node]] = []
    for node in nodes:
        if not runs or known[runs[-1][0]].free != known[node].free:
            runs.append([])
        runs[-1].append(node)
    order: list[Node] = []
    held: list[Node] = []  # a run that waits for the next free one to go first
    for run in runs:
        if known[run[0]].free:
            order += (*run, *held)
            held = []
        else:
            held = run
    return order + held


def buckets(order: Sequence[Node], known: Mapping[Node, Facts]) -> list[list[Node]]:
    """Neighbours in the chain that are done as one."""
    result: list[list[Node]] = []
    members = size = 0
    for node in order:
        nbytes = max(node.type.nbytes, node.srcs[0].type.nbytes)
        fits = (
            bool(result)
            and node.op in _BUCKETS
            and _kind(result[-1][0]) == _kind(node)
            and size + nbytes <= BUCKET
            and not known[node].needs & members
        )
        if not fits:
            result.append([])
            members = size = 0
        result[-1].append(node)
        members |= 1 << known[node].number
        size += nbytes
    return result


def _kind(node: Node) -> tuple[object, ...]:
    """The properties that the collectives of a bucket share."""
    return (node.op, node["name"], node.get("group"), node.get("kind"), node.dtype)


class _CycleError(Exception):
    """Steps that need each other: a bucket that memory is in the way of."""


class _Placer:
    """Puts steps in order: collectives as early, waits as late as possible.

    Args:
        tasks: The steps in an order that is valid; `needs`, `queue` and the rest are by number.
        needs: For every task those before it.
        queue: The starts, in order.
        nbytes: Of what each start fills.
        limit: Bytes that may be filled before they are needed.
    """

    def __init__(
        self,
        tasks: Sequence[Draft],
        needs: Mapping[int, set[int]],
        queue: Sequence[int],
        nbytes: Mapping[int, int],
        limit: int,
    ) -> None:
        self.tasks, self.needs, self.nbytes, self.limit = tasks, needs, nbytes, limit
        self.queue = list(queue)
        self.place = {start: i for i, start in enumerate(queue)}
        self.begun = 0  # of the queue
        self.ahead = 0  # bytes of those that are not waited for
        self.done: set[int] = set()
        self.order: list[int] = []

    def run(self, base: Sequence[int]) -> list[int]:
        """The new order; `base` are the tasks, without starts and waits, in the old one."""
        for number in base:
            self._begin()
            self._emit(number)
        for number in self.queue:
            self._emit(number)
        for number in self.needs:
            self._emit(number)
        return self.order

    def _begin(self) -> None:
        """Start collectives whose inputs exist, or take little to make."""
        while self.begun < len(self.queue):
            start = self.queue[self.begun]
            if self.ahead + self.nbytes[start] > self.limit or not self._is_near(start):
                return
            self._emit(start)

    def _is_near(self, start: int) -> bool:
        found: set[int] = set()
        stack = [start]
        while stack:
            for need in self.needs[stack.pop()]:
                if need in self.done or need in found:
                    continue
                task = self.tasks[need]
                if len(found) == MOST_BROUGHT or not isinstance(task.unit, Cluster):
                    return False
                found.add(need)
                stack.append(need)
        return True

    def _emit(self, number: int) -> None:
        """Append a task, what it needs first."""
        stack, waiting = [number], set[int]()
        while stack:
            top = stack[-1]
            if top in self.done:
                stack.pop()
                continue
            missing = [need for need in sorted(self.needs[top]) if need not in self.done]
            place = self.place.get(top)
            if place is not None and self.begun < place:
                missing.insert(0, self.queue[self.begun])
            if not missing:
                stack.pop()
                waiting.discard(top)
                self._append(top)
                continue
            waiting.add(top)
            if missing[0] in waiting:
                raise _CycleError
            stack.append(missing[0])

    def _append(self, number: int) -> None:
        self.done.add(number)
        self.order.append(number)
        task = self.tasks[number]
        if number in self.place:
            self.begun += 1
            self.ahead += self.nbytes[number]
        elif isinstance(task, WaitDraft):
            (start,) = (n for n in self.needs[number] if n in self.place)
            self.ahead -= self.nbytes[start]


def overlapped(drafts: Sequence[Draft], graph: Graph) -> list[Draft]:
    """Split collectives into starts and waits, and place them.

    Args:
        drafts: In an order that is valid if collectives end where they begin.
        graph: What they came from.
    """
    if not any(isinstance(draft, CollectiveDraft) for draft in drafts):
        return list(drafts)
    if any(map(has_collectives, drafts)):  # in loops and branches: each ends where it begins
        split = ((d, WaitDraft.of(d)) if isinstance(d, CollectiveDraft) else (d,) for d in drafts)
        return [draft for parts in split for draft in parts]
    known = facts(graph)
    order = chain(known)
    try:
        return _placed(drafts, buckets(order, known))
    except _CycleError:
        # Memory that is written over makes a collective wait for another of its bucket.
        in_order = sorted(known, key=lambda node: known[node].number)
        return _placed(drafts, [[node] for node in in_order])


def _placed(drafts: Sequence[Draft], groups: Sequence[Sequence[Node]]) -> list[Draft]:
    tasks: list[Draft] = []
    first: dict[Node, int] = {}
    for draft in drafts:
        if isinstance(draft, CollectiveDraft):
            first[draft.node] = len(tasks)
            tasks += (draft, WaitDraft.of(draft))
        else:
            tasks.append(draft)
    needs = dependencies(tasks, [[i for i, task in enumerate(tasks) if has_effect(task)]])
    # A bucket takes the numbers of its first; the others' are not used any more.
    same: dict[int, int] = {}
    queue, nbytes = [], {}
    for group in groups:
        numbers = [first[node] for node in group if node in first]
        if not numbers:
            continue
        head = numbers[0]
        members = [tasks[number] for number in numbers]
        whole = CollectiveDraft.joined([m for m in members if isinstance(m, CollectiveDraft)])
        tasks[head], tasks[head + 1] = whole, WaitDraft.of(whole)
        for number in numbers:
            same[number], same[number + 1] = head, head + 1
        queue.append(head)
        nbytes[head] = sum({storage: storage.nbytes for storage in whole.writes}.values())
    joined: dict[int, set[int]] = {}
    for number, before in enumerate(needs):
        kept = same.get(number, number)
        joined.setdefault(kept, set()).update(same.get(need, need) for need in before)
    for number, before in joined.items():
        before.discard(number)
    limit = max(AHEAD, *nbytes.values())
    base = [number for number in range(len(tasks)) if number not in same]
    order = _Placer(tasks, joined, queue, nbytes, limit).run(base)
    return [tasks[number] for number in order]
