"""Control flow as straight lines: the instructions of a section are all issued, always.

Of a conditional all branches are computed, and the selector takes one result: it takes the time of
its branches together, and what is small there is fused with what is around it. A loop whose turns
can be counted beforehand is written out, turn by turn.
"""

from __future__ import annotations

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.loops import turns_of
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

__all__ = ["without_control"]

_CONTROL = frozenset({Op.CONDITIONAL, Op.WHILE})
_STAYS = _CONTROL | {Op.HOST_CALL}
_MOST_TURNS = 64
_MOST_NODES = 1 << 12  # of all turns


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
    turns = turns_of(call, body, _MOST_TURNS)
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


# --- both ----------------------------------------------------------------------------------------


def _is_pure(graph: Graph) -> bool:
    """Return whether a graph may run although nobody wants it, or several times."""
    return not any(node.op in _STAYS or "sequence" in node.attrs for node in graph.nodes())
