"""Branches without control flow: all are computed, and the selector takes what it wants.

The engines' instructions of a section are all issued, whatever values say. So a conditional takes
the time of its branches together, and what is small there is fused with what is around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

__all__ = ["without_branches"]

_PURE_NOT = frozenset({Op.WHILE, Op.HOST_CALL})


def without_branches(graph: Graph) -> Graph:
    """Return a graph whose conditionals are selections; those with effects in them stay."""
    if not any(node.op is Op.CONDITIONAL for node in graph.nodes()):
        return graph
    locs: dict[Node, Loc] = {}
    known: dict[Node, tuple[Node, ...] | None] = {}

    def rule(node: Node) -> Node | None:
        call = node.srcs[0] if node.op is Op.GET else node
        if call.op is not Op.CONDITIONAL:
            return None
        if call not in known:
            known[call] = _selected(call, locs)
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
    branches = [without_branches(branch) for branch in call["branches"]]
    if not all(map(_is_pure, branches)):
        return None
    found = [_inlined(branch, operands, locs) for branch in branches]
    results = found[-1]  # also of what is no branch's number
    for number in reversed(range(len(found) - 1)):
        chosen = selector
        if selector.dtype is not DType.PRED:
            chosen = build.compare(selector, build.splat(number, selector.type), "EQ")
        results = tuple(
            build.select(build.broadcast_to(chosen, one.shape), one, other)
            for one, other in zip(found[number], results, strict=True)
        )
    return results


def _is_pure(graph: Graph) -> bool:
    """Return whether a branch may run although nobody wants it."""
    return not any(
        node.op in _PURE_NOT or node.op is Op.CONDITIONAL or "sequence" in node.attrs
        for node in graph.nodes()
    )


def _inlined(graph: Graph, operands: Sequence[Node], locs: dict[Node, Loc]) -> tuple[Node, ...]:
    """Return the results of a graph on operands."""
    new: dict[Node, Node] = dict(zip(graph.params, operands, strict=True))
    for node in graph.nodes():
        if node not in new:
            new[node] = node.replace(new[src] for src in node.srcs)
            if node in graph.locs:
                locs[new[node]] = graph.locs[node]
    return tuple(new[result] for result in graph.results)
