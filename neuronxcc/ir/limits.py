"""The documented limits that a whole graph meets, and the lines of the nodes that meet them."""

from __future__ import annotations

from collections.abc import Iterator

from neuronxcc.ir.gaps import gaps
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.operators.definition import Gap
from neuronxcc.ir.verify import called_graphs
from neuronxcc.targets import Target


def limits(graph: Graph, target: Target, *, unsafe_fp8: bool = False) -> Iterator[tuple[Node, Gap]]:
    """Every limit of the target that a graph meets, control flow included.

    Args:
        graph: As a front end made it: passes rewrite what the user wrote.
        target: What it is compiled for.
        unsafe_fp8: float8_e4m3fn may be taken for float8_e4m3.
    """
    for _, node in _nodes(graph, set()):
        for gap in gaps(node, target):
            if not (gap.code == "NCC_EVRF051" and unsafe_fp8):
                yield node, gap


def lines(graph: Graph) -> dict[Node, Loc]:
    """The user's line of every node, as far as one is known.

    An operator's lowering makes several nodes of which the last has a line; the others get that of
    a node that uses them.
    """
    found = dict(graph.locs)
    for owner, node in reversed(list(_nodes(graph, set()))):
        loc = found.get(node) or owner.locs.get(node)
        if loc is not None:
            for operand in node.srcs:
                found.setdefault(operand, loc)
    return found


def _nodes(graph: Graph, done: set[int]) -> Iterator[tuple[Graph, Node]]:
    for node in (*graph.params, *graph.nodes()):
        if id(node) in done:
            continue
        done.add(id(node))
        yield graph, node
        for inner in called_graphs(node):
            yield from _nodes(inner, done)
