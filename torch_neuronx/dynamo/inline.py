"""A graph's nodes with operands in the place of its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op


def inline(graph: Graph, operands: Sequence[Node]) -> list[Node]:
    """The results of `graph` for operands, one per parameter and of its type."""
    done: dict[Node, Node] = {}
    for node in graph.nodes():
        if node.op is Op.PARAMETER:
            done[node] = operands[node["index"]]
        else:
            done[node] = node.replace(done[src] for src in node.srcs)
    return [done[result] for result in graph.results]
