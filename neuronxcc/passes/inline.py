"""Calls replaced by what they call; branches that a constant selects likewise."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir import build
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.verify import called_graphs, with_called
from neuronxcc.passes.match import splat
from neuronxcc.passes.rules import program_order


def inline(graph: Graph) -> Graph:
    """Replace calls, also inside loops and branches.

    A body with effects (nodes with a `sequence`) stays a call: its numbers must stay unique.
    """
    return _Inliner().graph(graph)


class _Inliner:
    def __init__(self) -> None:
        self.graphs: dict[int, tuple[Graph, Graph]] = {}

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self.graphs:
            if not any(called_graphs(node) for node in graph.nodes()):
                new = graph
            else:
                locs = dict(graph.locs)
                results = self.copy(graph, graph.params, locs)
                new = Graph(graph.name, graph.params, results, graph.aliases, locs)
            self.graphs[id(graph)] = (graph, new)
        return self.graphs[id(graph)][1]

    def copy(self, graph: Graph, args: Sequence[Node], locs: dict[Node, Loc]) -> tuple[Node, ...]:
        """The results of a graph on operands, its calls replaced; positions go to `locs`."""
        new: dict[Node, Node] = dict(zip(graph.params, args, strict=True))
        called: dict[Node, tuple[Node, ...]] = {}  # results of replaced calls
        for node in program_order(graph):
            if node in new:
                continue
            if node.op is Op.GET and node.srcs[0] in called:
                new[node] = called[node.srcs[0]][node["index"]]
                continue
            srcs = [new[src] for src in node.srcs if src not in called]
            if (chosen := self.chosen(node, srcs)) is not None:
                body, operands = chosen
                called[node] = self.copy(body, operands, locs)
                if len(node.types) == 1:
                    new[node] = called.pop(node)[0]
                continue
            made = self.nested(node.replace(srcs))
            new[node] = made
            if node in graph.locs:
                locs.setdefault(made, graph.locs[node])
        return tuple(new[result] for result in graph.results)

    def chosen(self, node: Node, srcs: list[Node]) -> tuple[Graph, list[Node]] | None:
        """The graph that takes the place of a node, and its operands."""
        if node.op is Op.CALL:
            body: Graph = node["body"]
            return None if _has_effects(body) else (body, srcs)
        if node.op is not Op.CONDITIONAL or (value := splat(srcs[0])) is None:
            return None
        branches: tuple[Graph, ...] = node["branches"]
        number = int(not value) if value.dtype == bool else int(value)
        branch = branches[number if 0 <= number < len(branches) else -1]
        return None if _has_effects(branch) else (branch, srcs[1:])

    def nested(self, node: Node) -> Node:
        if not called_graphs(node):
            return node
        return build.make(node.op, node.srcs, **with_called(node, self.graph))


def _has_effects(graph: Graph) -> bool:
    return any(
        node.get("sequence") is not None or any(map(_has_effects, called_graphs(node)))
        for node in graph.nodes()
    )
