"""Control flow as straight lines: the instructions of a section are all issued, always.

Of a conditional all branches are computed, and the selector takes one result: it takes the time of
its branches together, and what is small there is fused with what is around it. A loop whose turns
can be counted beforehand is written out, turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Kind
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import TABLE

__all__ = ["without_control"]

_CONTROL = frozenset({Op.CONDITIONAL, Op.WHILE})
_STAYS = _CONTROL | {Op.HOST_CALL}
_ELSEWHERE = frozenset({Kind.COLLECTIVE, Kind.CALL, Kind.CONTROL})
_COUNTED = 16  # elements of what counts
_MOST_TURNS = 64
_MOST_NODES = 1 << 12  # of all turns
Array = npt.NDArray[Any]


def without_control(graph: Graph) -> Graph:
    """Return a graph without conditionals and counted loops; those with effects in them stay."""
    if not any(node.op in _CONTROL for node in graph.nodes()):
        return graph
    locs: dict[Node, Loc] = {}
    known: dict[Node, tuple[Node, ...] | None] = {}

    def rule(node: Node) -> Node | None:
        call = node.srcs[0] if node.op is Op.GET else node
        if call.op not in _CONTROL:
            return None
        if call not in known:
            straight = _selected if call.op is Op.CONDITIONAL else _written_out
            known[call] = straight(call, locs)
        found = known[call]
        if found is None or (node is call and len(found) != 1):
            return None
        return found[node["index"] if node.op is Op.GET else 0]

    made = graph.rewrite(rule)
    made.locs.update({node: loc for node, loc in locs.items() if node not in made.locs})
    return made


def _selected(call: Node, locs: dict[Node, Loc]) -> tuple[Node, ...] | None:
    """Return the results of a conditional, None if its branches must not all run."""
    selector, *operands = call.srcs
    branches = [without_control(branch) for branch in call["branches"]]
    if not all(map(_is_pure, branches)):
        return None
    found = [branch.apply(operands, locs) for branch in branches]
    results = tuple(found[-1])  # also of what is no branch's number
    for number in reversed(range(len(found) - 1)):
        chosen = selector
        if selector.dtype is not DType.PRED:
            chosen = build.compare(selector, build.splat(number, selector.type), "EQ")
        results = tuple(
            build.select(build.broadcast_to(chosen, one.shape), one, other)
            for one, other in zip(found[number], results, strict=True)
        )
    return results


# --- loops ---------------------------------------------------------------------------------------


def _written_out(call: Node, locs: dict[Node, Loc]) -> tuple[Node, ...] | None:
    """Return the results of a loop turn by turn, None if nobody knows how many there are."""
    body: Graph = without_control(call["body"])
    if not _is_pure(body):
        return None
    turns = _turns(call, body)
    if turns is None or len(turns) * sum(1 for _ in body.nodes()) > _MOST_NODES:
        return None
    state = call.srcs
    for counted in turns:
        results = body.apply(state, locs)
        # What is counted is a number and not computed.
        state = tuple(
            build.constant(counted[at], node.dtype) if at in counted else node
            for at, node in enumerate(results)
        )
    return state


def _turns(call: Node, body: Graph) -> list[dict[int, Array]] | None:
    """Return what the parts of the state that are counted are after each turn, by their number.

    These are parts that begin with constants and depend on each other alone; the condition has to
    depend on them alone, too.
    """
    cond: Graph = call["cond"]
    needs = [_needs(result, body) for result in body.results]
    known = {
        at: np.asarray(node["literal"].array)
        for at, node in enumerate(call.srcs)
        if node.op is Op.CONSTANT and node.type.size <= _COUNTED
    }
    while lost := {at for at in known if not needs[at] <= known.keys()}:
        for at in lost:
            del known[at]
    if not _needs(cond.results[0], cond) <= known.keys():
        return None
    counts = Graph("counts", body.params, tuple(body.results[at] for at in known))
    if any(TABLE[node.op].kind in _ELSEWHERE for g in (cond, counts) for node in g.nodes()):
        return None
    found: list[dict[int, Array]] = []
    while evaluate(cond, _filled(cond, known))[0]:
        if len(found) == _MOST_TURNS:
            return None
        known = dict(zip(known, evaluate(counts, _filled(counts, known)), strict=True))
        found.append(known)
    return found


def _needs(node: Node, graph: Graph) -> set[int]:
    """Return the numbers of the parameters that a node depends on."""
    numbers = {param: at for at, param in enumerate(graph.params)}
    return {numbers[part] for part in Graph("part", (), (node,)).nodes() if part in numbers}


def _filled(graph: Graph, known: Mapping[int, Array]) -> list[Array]:
    """Return arguments for a graph that looks at what is known alone."""
    return [
        known[at] if at in known else np.broadcast_to(np.zeros((), p.dtype.numpy), p.shape)
        for at, p in enumerate(graph.params)
    ]


# --- both ----------------------------------------------------------------------------------------


def _is_pure(graph: Graph) -> bool:
    """Return whether a graph may run although nobody wants it, or several times."""
    return not any(node.op in _STAYS or "sequence" in node.attrs for node in graph.nodes())
