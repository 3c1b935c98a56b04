"""Lowering: the list of its stages."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.emission.drafts import (
    CollectiveDraft,
    Draft,
    Drafter,
    has_collectives,
    has_effect,
)
from neuronxcc.lowering.emission.fold_checks import folded
from neuronxcc.lowering.emission.summary import summary
from neuronxcc.lowering.errors import StepOrderError
from neuronxcc.lowering.fusion.cluster import Storage
from neuronxcc.lowering.fusion.fuse import Fused, fuse
from neuronxcc.lowering.geometry.layout import Strides, contiguous
from neuronxcc.lowering.memory.plan import Interval, peak, plan
from neuronxcc.lowering.memory.sharing import Settler
from neuronxcc.lowering.preparation.rewrites import prepare
from neuronxcc.lowering.scheduling.overlap import overlapped
from neuronxcc.lowering.scheduling.schedule import scheduled
from neuronxcc.options import Options
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from neuronxcc.program.steps.operator import AtenStep

_MADE = ("temp", "output")  # storages that hold nothing before a step writes to them


def lower(
    graph: Graph,
    options: Options,
    param_strides: Sequence[Strides] | None = None,
    result_strides: Sequence[Strides] | None = None,
    constant_params: Collection[int] | None = None,
) -> Program:
    """Turn a graph into a program.

    Args:
        graph: Canonical, verified.
        options: Of the compilation.
        param_strides: Of every parameter, in elements; None: all are contiguous.
        result_strides: Of every result; those of aliased results are the parameter's. None: all
            are contiguous.
        constant_params: Numbers of the parameters that callers pass unchanged many times (weights),
            so that products may keep a packed form of them. None: all that are not updated.
    """
    if param_strides is None:
        param_strides = [contiguous(p.shape) for p in graph.params]
    if result_strides is None:
        result_strides = [contiguous(r.shape) for r in graph.results]
    graph = prepare(graph)
    fused = fuse(graph, param_strides, result_strides)

    def lower_body(body: Graph, strides: Sequence[Strides]) -> Program:
        return lower(_handing_on(body), options, strides, None, ())

    def loc(node: Node) -> str:
        return str(graph.locs.get(node, ""))

    updated = set(graph.aliases.values())
    constant = range(len(graph.params)) if constant_params is None else constant_params
    drafter = Drafter(fused, lower_body, loc, frozenset(constant) - updated)
    settler = Settler(fused)
    settler.run()
    units = sorted(fused.units, key=lambda unit: unit.number, reverse=True)
    kept = [unit for unit in units if unit not in settler.dropped]
    drafts = [draft for draft in map(drafter.draft, kept) if draft is not None]
    return _assemble(graph, fused, overlapped(_ordered(drafts), graph))


def _handing_on(body: Graph) -> Graph:
    """The body with operands that it returns as they are marked as such: they need no copy."""
    kept = {i: r["index"] for i, r in enumerate(body.results) if r.op is Op.PARAMETER}
    aliases = {**kept, **body.aliases}
    return Graph(body.name, body.params, body.results, aliases, body.locs)


def _ordered(drafts: list[Draft]) -> list[Draft]:
    """The drafts in the order of execution; calls with effects keep theirs."""
    nbytes: dict[Hashable, int] = {
        storage: storage.nbytes
        for draft in drafts
        for storage in (*draft.reads, *draft.writes)
        if storage.kind == "temp"
    }
    effects = [i for i, d in enumerate(drafts) if has_effect(d)]
    collectives = [i for i, d in enumerate(drafts) if isinstance(d, CollectiveDraft)]
    if any(map(has_collectives, drafts)):  # all of one order
        return scheduled(drafts, nbytes, [sorted((*effects, *collectives))])
    return scheduled(drafts, nbytes, [effects, collectives])


def check_order(name: str, drafts: Sequence[Draft]) -> None:
    """Raise StepOrderError if a step reads what no step before it has written."""
    written: set[Storage] = set()
    for position, draft in enumerate(drafts):
        made = {s for s in draft.reads if s.kind in _MADE and s.nbytes}
        if early := made - written - {*draft.writes}:
            raise StepOrderError(name, position, (s.node.type for s in early))
        written.update(draft.writes)


def _assemble(graph: Graph, fused: Fused, drafts: Sequence[Draft]) -> Program:
    """Number the buffers, place the temporaries, and build the steps."""
    lives: dict[Storage, Interval] = {}
    numbers: dict[Storage, int] = {}
    for storage in (*fused.places.params, *fused.results):
        assert storage.merged is None
        numbers.setdefault(storage, len(numbers))
    check_order(graph.name, drafts)
    for position, draft in enumerate(drafts):
        if isinstance(draft, CollectiveDraft):
            draft.position = position
        for storage in (*draft.reads, *draft.writes):
            numbers.setdefault(storage, len(numbers))
            if storage.kind == "temp":
                life = lives.setdefault(storage, Interval(storage.nbytes, position, position))
                life.last = position
    scratch = plan(list(lives.values()))
    buffers = tuple(_buffer(storage, lives.get(storage)) for storage in numbers)
    steps = folded(buffers, [draft.build(numbers.__getitem__) for draft in drafts])
    meta: dict[str, Any] = {
        "memory": {
            "scratch_bytes": scratch,
            "live_bytes": peak(list(lives.values())),
            "temporaries": len(lives),
        },
        "steps": summary(drafts),
        "host": tuple(step.target for step in steps if isinstance(step, AtenStep) and step.host),
    }
    results = tuple(numbers[storage] for storage in fused.results)
    return Program(graph.name, buffers, steps, results, scratch, meta)


def _buffer(storage: Storage, life: Interval | None) -> Buffer:
    node = storage.node
    return Buffer(
        storage.kind,
        node.dtype,
        storage.shape,
        storage.strides,
        index=storage.index,
        offset=-1 if life is None else life.offset,
        literal=node["literal"] if storage.kind == "constant" else None,
        name=node["name"] if storage.kind == "input" else "",
    )
