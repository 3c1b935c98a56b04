"""Nodes that follow each other without memory in between, and how long each such section takes.

A section begins with what needs its operands as a whole: a product, an attention, a gather, a sort,
a collective, a call. What is done to its result element by element, and reductions of it, belong to
it: they work on tiles while these are on the chip. So a section works on its engines at the same
time, tile by tile, and takes as long as the busiest of them; then the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.loops import turns_of
from neuronxcc.ir.node import Node, is_uniform
from neuronxcc.ir.op import Op
from neuronxcc.perf.graphs.machine import Machine
from neuronxcc.perf.graphs.merging import balance, merge
from neuronxcc.perf.graphs.rates import NodeCost, cost_of
from neuronxcc.perf.prediction import Prediction

__all__ = [
    "BY_BOUNDS",
    "KERNEL",
    "SIMULATED",
    "How",
    "Kernels",
    "Section",
    "cost_section",
    "sections_of",
]

How = Literal["simulated", "bytes and flops"]
#: Of a call of a kernel what its instructions take; None for calls of other things.
Kernels = Callable[[Node], Prediction | None]
SIMULATED: Final[How] = "simulated"
BY_BOUNDS: Final[How] = "bytes and flops"
COPY: Final = "copied result"  # the class of a result that nobody computes
KERNEL: Final = "kernel"  # the class of a call of a kernel of NKI whose instructions are timed

_BEGINS = frozenset(
    {"product", "attention", "rows", "sort", "largest", "host", "other call", "collective"}
    | {"window", "scattered choice", "random numbers"}
)
_BESIDE: Final = 1 << 16  # bytes of a small result: a scale or a shift of each channel
_MOST_TURNS: Final = 1 << 10  # of a loop: longer ones are counted once
# What is no work of its own: it is another way of looking at its operand.
_VIEWS = frozenset({Op.RESHAPE, Op.BROADCAST_IN_DIM, Op.SLICE, Op.BITCAST_CONVERT})
# They change a part of a value that stays where it is.
_IN_PLACE = frozenset({Op.DYNAMIC_UPDATE_SLICE, Op.SCATTER})
_NESTED = frozenset({Op.WHILE, Op.CONDITIONAL, Op.CALL})


@dataclass(slots=True)
class Section:
    """Nodes that are computed together.

    Attributes:
        nodes: what each of them costs, operands first.
        busy: microseconds by engine; "dma" for what goes between HBM and the chip.
        latency_us: what is waited for between the section before and this one.
        read: bytes that HBM gives.
        written: bytes that HBM takes.
        of: bytes of HBM by number in `nodes`: to whom they are counted.
        how: where its time is from.
        simulated_us: of a device program, None if there is none.
        spilled: bytes of HBM that are there because memory on the chip is too small.
        notes: what is not modelled of it.
    """

    nodes: list[NodeCost] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    latency_us: float = 0.0
    read: int = 0
    written: int = 0
    of: list[int] = field(default_factory=list)
    how: How = BY_BOUNDS
    simulated_us: float | None = None
    spilled: int = 0
    notes: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        """Microseconds that it takes."""
        if self.simulated_us is not None:
            return self.simulated_us
        return max(self.busy.values(), default=0.0) + self.latency_us

    @property
    def bound_by(self) -> str:
        """Its busiest engine, "dma", or "latency" where waiting is longer."""
        name, most = max(self.busy.items(), key=lambda item: item[1], default=("", 0.0))
        return name if most >= self.latency_us else "latency"

    @property
    def flops(self) -> int:
        """Multiplications and additions of its products."""
        return sum(cost.flops for cost in self.nodes)

    def shares(self, machine: Machine) -> list[float]:
        """Of each node, its share of the section's time: by what keeps an engine or DMA longest."""
        weights = [
            max(cost.longest, machine.dma_us(moved))
            for cost, moved in zip(self.nodes, self.of, strict=True)
        ]
        whole = sum(weights)
        if not whole:
            return [1 / len(weights)] * len(weights)
        return [weight / whole for weight in weights]


def sections_of(
    graph: Graph,
    machine: Machine,
    *,
    constant_params: Collection[int] | None = None,
    kernels: Kernels | None = None,
) -> list[Section]:
    """Take a graph apart into sections, and cost them.

    Args:
        graph: of tensor IR; one without collectives, whose cost depends on where ranks are.
        machine: a logical core.
        constant_params: numbers of the parameters that are weights: transposing them is done once,
            when they are loaded. None: all that the graph does not update.
        kernels: gives the times of NKI's kernels that the graph calls. Each is a section that
            takes this time; without it they are calls of other things.
    """
    if constant_params is None:
        updated = set(graph.aliases.values())
        constant_params = {p["index"] for p in graph.params} - updated
    parts = _taken_apart(graph, machine, frozenset(constant_params), kernels)
    parts.kept = frozenset(graph.params) - {graph.params[at] for at in graph.aliases.values()}
    copied = parts.copied(graph)
    return [*parts.finished(graph), *([copied] if copied else [])]


def _taken_apart(
    graph: Graph, machine: Machine, constant: frozenset[int], kernels: Kernels | None = None
) -> _Parts:
    parts = _Parts(machine, constant, kernels)
    for node in graph.nodes():
        parts.add(node)
    return parts


def cost_section(nodes: Sequence[Node], results: Collection[Node], machine: Machine) -> Section:
    """Return what nodes cost if they are one section, whose results leave it.

    Args:
        nodes: operands first.
        results: of them, those that are used elsewhere.
        machine: a logical core.
    """
    parts = _Parts(machine, frozenset())
    parts.sections.append([])
    for node in nodes:
        parts.costs[node] = cost_of(node, machine)
        parts.place[node] = 0
        parts.sections[0].append(node)
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for src in node.srcs:
            users.setdefault(src, []).append(node)
    merge([parts.costs[node] for node in nodes], users)
    return parts.costed(0, frozenset(results), frozenset())


class _Parts:
    def __init__(
        self, machine: Machine, constant: frozenset[int], kernels: Kernels | None = None
    ) -> None:
        self.machine = machine
        self.known = kernels
        self.kernels: dict[Node, Prediction] = {}
        self.apart: dict[int, Node] = {}  # by number of a section the kernel that it is
        self.stored: set[Node] = set()  # what kernels take and give, which is in HBM
        self.constant = constant
        self.kept: frozenset[Node] = frozenset()  # parameters that are to stay as they are
        self.sections: list[list[Node]] = []
        self.place: dict[Node, int] = {}  # number of its section; -1 for what is not computed here
        self.costs: dict[Node, NodeCost] = {}
        self.weights: set[Node] = set()  # made of constant parameters by moving alone
        self.nested: dict[Node, list[Section]] = {}
        self.loaded: dict[Node, int] = {}  # bytes that an earlier section has brought and left here
        self.streams = False  # nothing in the last section needs an operand as a whole

    def add(self, node: Node) -> None:
        """Put a node into a section; its operands are in theirs."""
        cost = cost_of(node, self.machine)
        self.costs[node] = cost
        if node.op is Op.PARAMETER:
            self.place[node] = -1
            if node["index"] in self.constant:
                self.weights.add(node)
            return
        moved = node.op in _VIEWS or node.op in {Op.TRANSPOSE, Op.CONVERT}
        if moved and node.srcs[0] in self.weights:
            # Of weights that is done once, when they are loaded.
            self.weights.add(node)
            self.place[node] = -1
            return
        if self._is_kernels(node, cost):
            return
        before = max((self.place[src] for src in node.srcs), default=-1)
        free = not cost.works and cost.kind not in _BEGINS
        if node.op in _NESTED:
            self.nested[node] = self._inside(node)
        elif free and before < 0:
            self.place[node] = -1
            return
        begins = cost.kind in _BEGINS or node.op in _NESTED
        if begins or before < 0 or before in self.apart:
            # Chains on elements that do not wait for each other stream through the core together,
            # and what is small and waits for nothing runs beside the section before.
            beside = sum(t.nbytes for t in node.types) <= _BESIDE and bool(self.sections)
            alone = len(self.sections) - 1 in self.apart
            if begins or alone or not (self.streams or beside):
                self.sections.append([])
                self.streams = not begins
            before = len(self.sections) - 1
        self.place[node] = before
        self.sections[before].append(node)

    def _is_kernels(self, node: Node, cost: NodeCost) -> bool:
        """Put a kernel into a section of its own, with its results; False for other nodes."""
        if node.op is Op.GET and node.srcs[0] in self.kernels:
            self.place[node] = self.place[node.srcs[0]]
            self.sections[self.place[node]].append(node)
            self.stored.add(node)
            return True
        found = self.known(node) if self.known and node.op is Op.CUSTOM_CALL else None
        if found is None:
            return False
        self.kernels[node] = found
        cost.kind, cost.flops, cost.either = KERNEL, found.flops, {}
        cost.busy = {name: us for name, us in found.busy_us.items() if us and name != "dma"}
        cost.engine = max(cost.busy, key=lambda name: cost.busy[name], default="")
        self.place[node] = len(self.sections)
        self.apart[len(self.sections)] = node
        self.sections.append([node])
        self.stored |= {node, *(self._root(src) for src in node.srcs)}
        self.streams = False
        return True

    def _inside(self, node: Node) -> list[Section]:
        """Of a loop what it repeats, of a choice the longest branch."""
        inner = node["branches"] if node.op is Op.CONDITIONAL else (node["body"],)
        # What they hand on as they were given it stays where it is.
        found = []
        for graph in inner:
            constant = frozenset(range(len(graph.params))) - set(graph.aliases.values())
            found.append(_taken_apart(graph, self.machine, constant).finished(graph))
        return max(found, key=lambda branch: sum(s.us for s in branch))

    def finished(self, graph: Graph) -> list[Section]:
        """All sections, in order."""
        crossing = frozenset(
            self._root(src)
            for node in graph.nodes()
            for src in node.srcs
            if self.place[src] >= 0 and self.place[src] != self.place[node]
        )
        results = frozenset(node for node in graph.results if self._root(node) not in crossing)
        results |= frozenset(map(self._root, graph.results)) & crossing
        users = graph.users()
        for node in graph.results:
            users[node].append(node)  # stands for whoever calls the program
        found = []
        for number, nodes in enumerate(self.sections):
            merge([self.costs[node] for node in nodes], users)
            if number in self.apart:
                found.append(self._kernel(number))
                continue
            section = self.costed(number, results, crossing)
            for node in nodes:
                if node in self.nested:
                    _add(section, self.nested[node], node)
            found.append(section)
        return found

    def copied(self, graph: Graph) -> Section | None:
        """What no engine computes and is yet written.

        Results share no memory but with what they change in place. So parameters, parts of them,
        constants, and what is a result twice are copied.
        """
        made, given = Section(), set[Node]()
        for number, node in enumerate(graph.results):
            home = graph.aliases.get(number)
            stays = home is not None and node is graph.params[home]
            if stays or not node.type.nbytes:
                continue
            if self.place[node] >= 0 and node not in given:
                given.add(node)  # its section writes it
                continue
            part, root = self._part(node)
            filled = root.op is Op.CONSTANT and is_uniform(root["literal"].array)
            read = 0 if filled or not self._in_memory(root) else _bytes(part, root)
            made.nodes.append(NodeCost(node, COPY, "dma", result=number))
            made.of.append(read + node.type.nbytes)
            made.read += read
            made.written += node.type.nbytes
        if not made.nodes:
            return None
        made.busy["dma"] = self.machine.dma_us(made.read + made.written)
        made.latency_us = self.machine.graph.section_gap
        return made

    def costed(self, number: int, results: frozenset[Node], crossing: frozenset[Node]) -> Section:
        """The time and the bytes of a section."""
        machine = self.machine
        nodes = self.sections[number]
        made = Section([self.costs[node] for node in nodes])
        made.of = [0] * len(nodes)
        seen: dict[Node, int] = {}
        rows = sum(self._moves(at, made, number, seen) for at in range(len(nodes)))
        for at, node in enumerate(nodes):
            if node in results or (node in crossing and self._leaves(node)):
                size = self._changed(made.nodes[at])
                made.of[at] += size
                made.written += size
        made.read += self._again(nodes, seen)
        for cost in made.nodes:
            for name, us in cost.busy.items():
                made.busy[name] = made.busy.get(name, 0.0) + us
        balance(made.nodes, made.busy)
        whole = machine.dma_us(made.read + made.written - rows)
        made.busy["dma"] = made.busy.get("dma", 0.0) + whole
        made.busy = {name: us for name, us in made.busy.items() if us}
        if made.busy:
            made.latency_us = machine.graph.section_gap + self._chain(made)
        return made

    def _kernel(self, number: int) -> Section:
        """The section of a kernel, which takes what its instructions do."""
        call, nodes = self.apart[number], self.sections[number]
        known = self.kernels[call]
        made = Section([self.costs[node] for node in nodes])
        made.busy = {name: us for name, us in known.busy_us.items() if us}
        made.latency_us = max(0.0, known.device_us - max(made.busy.values(), default=0.0))
        made.simulated_us, made.how = known.device_us, SIMULATED
        made.written = min(known.hbm_bytes, sum(t.nbytes for t in call.types))
        made.read = known.hbm_bytes - made.written
        made.spilled = known.spilled_bytes
        made.of = [known.hbm_bytes if node is call else 0 for node in nodes]
        made.notes = known.notes
        return made

    def _moves(self, at: int, made: Section, number: int, seen: dict[Node, int]) -> int:
        """Count what a node of a section reads from HBM; of that, what its `busy` has already.

        Args:
            at: the node's place in the section.
            made: the section.
            number: the section's.
            seen: bytes that it has read so far, of values and of parts of them.
        """
        cost, rows = made.nodes[at], 0
        for operand, src in enumerate(cost.node.srcs):
            part, root = self._part(src)
            if self.place.get(root, -1) == number or not self._in_memory(root):
                continue
            before = max(seen.get(root, 0), self.loaded.get(root, 0))
            if part in seen or part in self.loaded or before >= root.type.nbytes:
                continue
            if cost.touched >= 0 and operand == 0 and not self._copies(cost.node):
                size = rows = cost.touched
            else:
                whole = root.type.nbytes
                size = min(_bytes(part, root), whole - before)
                kept = root not in self.weights and not self._leaves(root)
                for known in (seen, self.loaded) if kept else (seen,):
                    known[part] = size
                    known[root] = whole if part is root else before + size
                if src in self.weights:
                    size = min(size, src.type.nbytes)  # they are stored as they are used
            made.of[at] += size
            made.read += size
        return rows

    def _changed(self, cost: NodeCost) -> int:
        """Bytes that a node's result has in HBM that were not there."""
        if self._in_place(cost.node):
            return cost.touched  # the rest stays where it is
        return sum(t.nbytes for t in cost.node.types)

    def _chain(self, section: Section) -> float:
        """The longest time that results of engines are waited for, one after the other."""
        until: dict[Node, float] = {}
        for cost in section.nodes:
            before = max((until.get(src, 0.0) for src in cost.node.srcs), default=0.0)
            own = self.machine.latency_us(cost.engine) if cost.works else 0.0
            until[cost.node] = before + own
        return max(until.values(), default=0.0)

    def _root(self, node: Node) -> Node:
        """What a value that is only looked at in another way lies in."""
        while node.srcs and (node.op in _VIEWS or self.place.get(node, 0) < 0):
            node = node.srcs[0]
        return node

    def _part(self, node: Node) -> tuple[Node, Node]:
        """What a value is a view of, and the part of that which it needs: a slice, or all."""
        root = self._root(node)
        part, below = node, node
        while below is not root:
            below = below.srcs[0]
            if below.type.size <= part.type.size or part.op is Op.BITCAST_CONVERT:
                part = below
        return part, root

    def _in_memory(self, root: Node) -> bool:
        """Return whether who did not make a value has to read it from HBM."""
        if root.op is Op.PARAMETER:
            return True
        if self._in_place(root):
            return True
        if self.place.get(root, -1) < 0:
            return root.op is Op.CONSTANT and root.type.size > 1
        return self._leaves(root)

    def _in_place(self, node: Node) -> bool:
        """Return whether a value is another one in memory, of which a part is changed."""
        if node.op not in _IN_PLACE:
            return False
        base = self._root(node.srcs[0])
        return base not in self.kept and self._in_memory(base)

    def _copies(self, node: Node) -> bool:
        """Return whether what a part is changed of stays, so that the rest is copied."""
        return node.op in _IN_PLACE and self._root(node.srcs[0]) in self.kept

    def _leaves(self, node: Node) -> bool:
        """Return whether a result is too large to stay on the chip."""
        if node in self.stored:
            return True
        return sum(t.nbytes for t in node.types) > self.machine.resident_bytes

    def _again(self, nodes: Sequence[Node], read: Collection[Node]) -> int:
        """Bytes that products read once more, because neither operand fits on the chip."""
        found = 0
        for node in nodes:
            if node.op is not Op.DOT_GENERAL:
                continue
            sizes = [src.type.nbytes for src in node.srcs if self._root(src) in read]
            batch = 1
            for d in node["lhs_batch"]:
                batch *= node.srcs[0].shape[d]
            if len(sizes) < 2:
                continue
            room = self.machine.resident_bytes
            first, second = (size // batch for size in sizes)
            if min(first, second) > room:
                found += batch * min(
                    (-(-first // room) - 1) * second, (-(-second // room) - 1) * first
                )
        return found


def _bytes(part: Node, root: Node) -> int:
    """Bytes of a part of a value, as that has them."""
    return part.type.size * root.dtype.itemsize


def _add(section: Section, inner: Sequence[Section], node: Node) -> None:
    """Add the sections of a graph that a node calls, as often as it does."""
    often = 1
    if node.op is Op.WHILE:
        turns = turns_of(node, node["body"], _MOST_TURNS)
        if turns is None:
            note = "a loop is counted as one iteration"
            section.notes = tuple(dict.fromkeys((*section.notes, note)))
        else:
            often = len(turns)
    for part in inner:
        section.nodes += [_repeated(cost, often) for cost in part.nodes]
        section.of += [moved * often for moved in part.of]
        section.read += part.read * often
        section.written += part.written * often
        section.latency_us += part.us * often
        section.notes = tuple(dict.fromkeys((*section.notes, *part.notes)))


def _repeated(cost: NodeCost, often: int) -> NodeCost:
    if often == 1:
        return cost
    return replace(
        cost,
        flops=cost.flops * often,
        busy={name: us * often for name, us in cost.busy.items()},
        either={name: us * often for name, us in cost.either.items()},
    )
