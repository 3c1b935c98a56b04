"""From a tape to tensor IR, and its time: what lies between two collectives is a segment.

A segment is run once more, on fake tensors, and becomes a functional graph of the operators that
`torch.compile` would see; that graph is imported and simplified as any other, then taken apart into
sections and timed. Segments that are alike, as the layers of a model are, are timed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.options import Options
from neuronxcc.passes import pipeline
from neuronxcc.perf.graphs import Machine, NodeCost, Section, sections_of
from neuronxcc.perf.graphs.sections import BY_BOUNDS, How
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.errors import LoweringError
from torch_neuronx.dynamo.importer import Imported, import_graph
from torch_neuronx.estimation.kernels import Kernels
from torch_neuronx.estimation.programs import simulated
from torch_neuronx.estimation.recorder import Call, Form, Ref, Tape
from torch_neuronx.ops.entry import Engine, base_name
from torch_neuronx.ops.lookup import entry_or_unknown

__all__ = ["Graphs", "Piece", "Timed", "Timer", "by_bytes"]


@dataclass(slots=True)
class Graphs:
    """What segments of a tape were made into.

    Attributes:
        keys: by calls, what is equal for segments that take equally long.
        made: by key and options, the graph; or why there is none.
    """

    keys: dict[tuple[int, ...], Any] = field(default_factory=dict)
    made: dict[Any, Compiled | str] = field(default_factory=dict)


class Compiled(NamedTuple):
    """The graph of a segment after all passes.

    Attributes:
        graph: in which a node's line is the number of its call.
        constant: which of its parameters are weights.
        makers: for each result the number of the call that makes it.
    """

    graph: Graph
    constant: frozenset[int]
    makers: tuple[int, ...]


aten = torch.ops.aten
_READS = aten._local_scalar_dense.default


class Piece(NamedTuple):
    """What one call of a segment costs in one of its sections.

    Attributes:
        call: number of the call in the segment.
        section: number of the section in the segment.
        engine: who does most of it; "dma" where moving takes longest.
        us: its share of the section's time.
        bytes: of HBM.
        flops: of products.
        how: where the section's time is from.
        kind: class of the operator, as `neuronxcc.perf.graphs.rates` names it.
        filled: of the Tensor Engine's array that its products fill.
        row_bytes: of the rows that it moves, 0 if it moves none.
        passes: of the Tensor Engine over its operands, 4 for float32.
    """

    call: int
    section: int
    engine: str
    us: float
    bytes: int
    flops: int
    how: How
    kind: str
    filled: float
    row_bytes: int
    passes: float


@dataclass(slots=True)
class Timed:
    """A segment with its time.

    Attributes:
        us: of all sections, one after the other.
        pieces: what they are made of.
        busy: microseconds by engine, "dma" and "latency".
        bound: microseconds by what binds each section.
        read: bytes that HBM gives.
        written: bytes that HBM takes.
        spilled: bytes of HBM that are there because memory on the chip is too small.
        sections: how many.
        notes: what is not modelled.
    """

    us: float = 0.0
    pieces: list[Piece] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    spilled: int = 0
    sections: int = 0
    notes: set[str] = field(default_factory=set)


class Timer:
    """Times segments of a tape, those that are alike once.

    Args:
        tape: what was recorded.
        machine: a logical core.
        settings: the compiler's options.
        training: weights change, so that transposing them is part of every step.
        graphs: what segments of this tape were made into; is added to.
        programs: take the times of device programs where there are some.
    """

    def __init__(
        self, tape: Tape, machine: Machine, settings: Options, *, training: bool, graphs: Graphs,
        programs: bool = False,
    ) -> None:  # fmt: skip
        self.tape, self.machine, self.settings = tape, machine, settings
        self.training = training
        self.graphs, self.programs = graphs, programs
        self._kernels = Kernels(machine)
        self._known: dict[Any, Timed] = {}
        self._keys = graphs.keys
        self._last = _last_uses(tape)

    def time(self, calls: Sequence[int]) -> Timed:
        """Return the time of some calls, given by their numbers on the tape."""
        work = [n for n in calls if self.tape.calls[n].func is not _READS]
        segment = _Segment(self.tape, work, self._last)
        key = self._keys.get(tuple(work))
        if key is None:
            key = self._keys[tuple(work)] = segment.key(self._constant)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._timed(segment, key)
        return found

    def _constant(self, number: int) -> bool:
        role = self.tape.blocks[number].role
        return not self.training and role in {"parameters", "buffers"}

    def _timed(self, segment: _Segment, key: Any) -> Timed:
        if not segment.computes:
            return Timed()  # other views of the same memory
        full = (key, self.settings)
        if full not in self.graphs.made:
            self.graphs.made[full] = self._compiled(segment)
        compiled = self.graphs.made[full]
        if isinstance(compiled, str):
            if len(segment.calls) > 1:
                whole = self._one_by_one(segment)
                whole.notes.add(f"call by call, as no graph can be made of a segment: {compiled}")
                return whole
            return self._opaque(segment, compiled)
        graph, constant, makers = compiled
        notes: set[str] = set()
        if self.programs:
            found = simulated(graph, self.machine, self.settings, constant)
            if not isinstance(found, str):
                return self._put_together(found[1], _located(found[0]), makers)
            notes.add(f"no device program: {found}")
        sections = sections_of(graph, self.machine, constant_params=constant, kernels=self._kernels)
        made = self._put_together(sections, _located(graph), makers)
        made.notes |= notes | self._kernels.notes
        return made

    def _compiled(self, segment: _Segment) -> Compiled | str:
        """The segment's graph, or why there is none."""
        constant = frozenset(
            at for at, number in enumerate(segment.inputs) if self._constant(number)
        )
        try:
            imported = segment.imported(constant)
        except (LoweringError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Compiled(
            pipeline.run(imported.graph, self.settings),
            imported.constant_params or frozenset(),
            segment.makers(imported),
        )

    def _one_by_one(self, segment: _Segment) -> Timed:
        """Of a segment that is no graph: its calls, each by itself."""
        whole = Timed()
        for at, number in enumerate(segment.calls):
            part = self.time([number])
            _add(whole, part, at)
        return whole

    def _opaque(self, segment: _Segment, error: str) -> Timed:
        """An operator of which no graph can be made: the bytes that it reads and writes."""
        call = self.tape.calls[segment.calls[0]]
        written = {*call.written, *(n for n in call.results if n is not None)}
        moved = sum(self.tape.forms[n].nbytes for n in (*{*call.given}, *written))
        us = by_bytes(self.machine, moved)
        note = f"{call.place.operator} by its bytes alone: {error}"
        piece = Piece(0, 0, "dma", us, moved, 0, BY_BOUNDS, "other call", 1.0, 0, 1.0)
        return Timed(
            us,
            [piece],
            {"dma": self.machine.dma_us(moved), "latency": self.machine.graph.section_gap},
            {"dma": us},
            moved,
            0,
            0,
            1,
            {note},
        )

    def _passes(self, cost: NodeCost) -> float:
        return self.machine.passes(cost.node.srcs[0].dtype) if cost.flops else 1.0

    def _put_together(
        self, sections: Sequence[Section], locs: dict[Node, int], makers: Sequence[int]
    ) -> Timed:
        made = Timed(sections=len(sections))
        for number, section in enumerate(sections):
            made.us += section.us
            made.read += section.read
            made.written += section.written
            made.spilled += section.spilled
            made.notes |= set(section.notes)
            made.bound[section.bound_by] = made.bound.get(section.bound_by, 0.0) + section.us
            for name, us in {**section.busy, "latency": section.latency_us}.items():
                made.busy[name] = made.busy.get(name, 0.0) + us
            shares = section.shares(self.machine)
            for cost, moved, share in zip(section.nodes, section.of, shares, strict=True):
                us = share * section.us
                if not us and not moved:
                    continue
                call = makers[cost.result] if cost.result >= 0 else locs.get(cost.node, 0)
                dma = self.machine.dma_us(moved) > cost.longest
                engine = "dma" if dma else cost.engine
                if section.bound_by == "host" and not cost.works:
                    engine = "host"  # a part of what an operator of the host gives
                made.pieces.append(
                    Piece(
                        call, number, engine, us, moved, cost.flops, section.how, cost.kind,
                        cost.filled, cost.row_bytes, self._passes(cost),
                    )
                )  # fmt: skip
        return made


def by_bytes(machine: Machine, moved: int) -> float:
    """Return the microseconds of an operator of which nothing is known but what it moves."""
    return machine.dma_us(moved) + machine.graph.section_gap


def _located(graph: Graph) -> dict[Node, int]:
    """By node the number of its call: of a node that has none, that of who uses it.

    The last node of an operator has its place, and passes keep that.
    """
    found: dict[Node, int] = {}
    for node in reversed(list(graph.nodes())):
        loc = graph.locs.get(node)
        if loc is not None:
            found[node] = loc.line
        elif node not in found:
            found[node] = 0
        for src in node.srcs:
            found.setdefault(src, found[node])
    return found


def _add(whole: Timed, part: Timed, call: int) -> None:
    shift = whole.sections
    whole.pieces += [p._replace(call=call, section=p.section + shift) for p in part.pieces]
    whole.us += part.us
    whole.read += part.read
    whole.written += part.written
    whole.spilled += part.spilled
    whole.sections += part.sections
    whole.notes |= part.notes
    for mine, its in ((whole.busy, part.busy), (whole.bound, part.bound)):
        for name, us in its.items():
            mine[name] = mine.get(name, 0.0) + us


def _last_uses(tape: Tape) -> dict[int, int]:
    """By number of a tensor, the last call that is given it.

    What a call is given and gives, because it is the same memory seen in the same way (a change in
    place, a view that changes nothing), is new after it: nobody has taken that yet.
    """
    found: dict[int, int] = {}
    for at, call in enumerate(tape.calls):
        found.update(dict.fromkeys(call.given, at))
        for number in call.results:
            if number is not None:
                found.pop(number, None)
    return found


class _Segment:
    """Some calls as a function of the tensors that they are given from outside."""

    def __init__(self, tape: Tape, calls: Sequence[int], last: dict[int, int]) -> None:
        self.tape, self.calls = tape, list(calls)
        made: dict[int, None] = {}
        given: dict[int, None] = {}
        beside: set[int] = set()
        for number in calls:
            call = tape.calls[number]
            taken = {result for result in call.results if result in last}
            if taken:
                # What nobody takes of an operator that somebody takes something of is dead.
                beside.update(n for n in call.results if n is not None and n not in taken)
            for value in call.given:
                if value not in made:
                    given.setdefault(value)
            for result in call.results:
                if result is not None and result not in given:
                    made.setdefault(result)
        self.inputs = tuple(given)
        # What is only looked at in another way, or taken and not filled, is nobody's work.
        working = [one for one in map(tape.calls.__getitem__, calls) if _works(one)]
        computed = {
            tape.blocks[n] for one in working for n in (*one.written, *one.results) if n is not None
        }
        self.computes = bool(working)
        end = calls[-1] if calls else -1
        # What somebody takes later, and what nobody takes: it is a result of the program.
        self.outputs = tuple(
            value
            for value in made
            if tape.blocks[value] in computed
            and (
                last.get(value, -1) > end
                or (value not in last and value not in beside and tape.forms[value].shape != (0,))
            )
        )

    def key(self, constant: Callable[[int], bool]) -> Any:
        """Equal for segments that take equally long."""
        local: dict[int, int] = {}

        def renumbered(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return Ref(local.setdefault(leaf.number, len(local)))
            return leaf

        parts: list[Any] = []
        for number in self.calls:
            call = self.tape.calls[number]
            parts.append((str(call.func), repr(tree_map(renumbered, (call.args, call.kwargs)))))
            parts.append(
                tuple(n if n is None else local.setdefault(n, len(local)) for n in call.results)
            )
        inputs = tuple((local.get(n), self.tape.forms[n], constant(n)) for n in self.inputs)
        return tuple(parts), inputs, tuple(local.get(n) for n in self.outputs)

    def imported(self, constant: Iterable[int]) -> Imported:
        """The segment as tensor IR. A node's line is the number of its call."""
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            given = [_empty(self.tape.forms[number]) for number in self.inputs]
            replay = torch.func.functionalize(self._replay)
            with fx_traceback.preserve_node_meta():
                parts = dict(decompositions(instructions=True))
                gm = make_fx(replay, decomposition_table=parts)(*given)
        gm.graph.eliminate_dead_code()
        return import_graph(gm, "segment", frozenset(constant))

    def makers(self, imported: Imported) -> tuple[int, ...]:
        """For each result of the segment's graph the number of the call that makes it."""
        last = {
            number: at
            for at, one in enumerate(self.calls)
            for number in (*self.tape.calls[one].results, *self.tape.calls[one].written)
        }
        found = []
        for number, loc in enumerate(imported.result_locs):
            home = imported.graph.aliases.get(number)
            if home is None:
                found.append(min(loc.line if loc else 0, len(self.calls) - 1))
                continue
            argument = imported.arguments[home]
            changed = self.inputs[argument] if isinstance(argument, int) else -1
            found.append(last.get(changed, len(self.calls) - 1))
        return tuple(found)

    def _replay(self, *given: Tensor) -> list[Tensor]:
        values = dict(zip(self.inputs, given, strict=True))

        def value(leaf: Any) -> Any:
            return values[leaf.number] if isinstance(leaf, Ref) else leaf

        for at, number in enumerate(self.calls):
            call = self.tape.calls[number]
            fx_traceback.set_stack_trace([f'  File "call", line {at}, in call\n'])
            args, kwargs = tree_map(value, (call.args, call.kwargs))
            result = call.func(*args, **kwargs)
            leaves = tree_leaves(result) if call.results else ()
            named = zip(call.results, leaves, strict=True)
            values |= {name: leaf for name, leaf in named if name is not None}
        return [values[number] for number in self.outputs]


def _works(call: Call) -> bool:
    """Return whether a call computes or moves something, by the table of operators."""
    name = base_name(call.func._schema.name)
    return entry_or_unknown(name).engine is not Engine.VIEW


def _empty(form: Form) -> Tensor:
    return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=form.device)
