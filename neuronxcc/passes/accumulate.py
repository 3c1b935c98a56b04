"""Sums and products of 16-bit types that accumulate in their own type, when the options ask for it.

`--disable-mixed-precision-accumulation` means that partial results are rounded to the type of the
operand instead of kept in float32 to the end. In which order, nobody documents; here halves are
combined until one element is left, which is the most exact of the usual orders. Products of
matrices are not touched: the tensor engine always accumulates in float32.
"""

from __future__ import annotations

import math
from typing import Final

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.halving import reduce_by_halves
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.verify import called_graphs, with_called
from neuronxcc.passes.rules import rebuilt

_NARROW: Final = frozenset({DType.BF16, DType.F16})
_COMBINE: Final = {"add": build.add, "mul": build.multiply}


def in_own_type(graph: Graph) -> Graph:
    """Rewrite the reductions of a graph and of the graphs it calls."""
    return _Rewriter().graph(graph)


class _Rewriter:
    def __init__(self) -> None:
        self.graphs: dict[int, tuple[Graph, Graph]] = {}

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self.graphs:
            new, locs = rebuilt(graph, self.node)
            results = tuple(new[result] for result in graph.results)
            made_graph = Graph(graph.name, graph.params, results, graph.aliases, locs)
            self.graphs[id(graph)] = (graph, made_graph)
        return self.graphs[id(graph)][1]

    def node(self, node: Node, srcs: list[Node]) -> Node:
        if called_graphs(node):
            return build.make(node.op, srcs, **with_called(node, self.graph))
        if node.op is Op.REDUCE and node.dtype in _NARROW and node["kind"] in _COMBINE:
            return _by_halves(srcs[0], node["kind"], node["dims"])
        return node.replace(srcs)


def _by_halves(x: Node, kind: str, dims: tuple[int, ...]) -> Node:
    if math.prod(x.shape[d] for d in dims) < 2:
        return build.reduce(x, kind, dims)
    (result,) = reduce_by_halves([x], dims, lambda pair: (_COMBINE[kind](*pair),))
    return build.alone(result, kind)
