"""Auto-cast: float32 computed in a narrower type, as `--auto-cast` and `--auto-cast-type` ask.

matmult  The operands of products and convolutions are rounded to the type; sums stay float32.
all      Besides, 16-bit types become the type of all float32 intermediates. tf32 and fp8_e4m3 are
         types of the tensor engine alone (the others compute in float32), so with them `all` does
         what `matmult` does.

Parameters and results of the graph, and what custom and host calls take and give, keep their types.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.ir.verify import called_graphs, with_called
from neuronxcc.passes.rules import rebuilt

_SIXTEEN = {"bf16": DType.BF16, "fp16": DType.F16}
# Each rounds a float32 operand of a product and gives it in the type in which it is multiplied.
_ROUND: dict[str, Callable[[Node], Node]] = {
    "bf16": lambda x: build.convert(x, DType.BF16),
    "fp16": lambda x: build.convert(x, DType.F16),
    # 8 bits of exponent and 10 of mantissa are no type of ours: float32 holds them.
    "tf32": lambda x: build.reduce_precision(x, 8, 10),
    # Every value of the type is one of bfloat16, and products of those are exact in float32.
    "fp8_e4m3": lambda x: build.convert(build.convert(x, DType.F8E4M3), DType.BF16),
}
_PRODUCTS = frozenset({Op.DOT_GENERAL, Op.CONVOLUTION})


def cast(graph: Graph, auto_cast: str, auto_cast_type: str) -> Graph:
    """Apply the options to a graph and to the graphs it calls.

    Args:
        graph: With float32 operations.
        auto_cast: "none", "matmult" or "all".
        auto_cast_type: "bf16", "fp16", "tf32" or "fp8_e4m3".
    """
    if auto_cast == "none":
        return graph
    narrow = _SIXTEEN.get(auto_cast_type) if auto_cast == "all" else None
    return _Cast(_ROUND[auto_cast_type], narrow).graph(graph)


class _Cast:
    def __init__(self, rounded: Callable[[Node], Node], narrow: DType | None) -> None:
        self.rounded = rounded
        self.narrow = narrow  # the type of intermediates; None: they stay
        self.graphs: dict[int, tuple[Graph, Graph]] = {}

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self.graphs:
            new, locs = rebuilt(graph, self.node)
            results = tuple(_as(new[r], r.dtype) for r in graph.results)
            cast_graph = Graph(graph.name, graph.params, results, graph.aliases, locs)
            self.graphs[id(graph)] = (graph, cast_graph)
        return self.graphs[id(graph)][1]

    def node(self, node: Node, srcs: list[Node]) -> Node:
        """The node on cast operands; in `all`, float32 operands and results may be narrow."""
        if node.op in _PRODUCTS and node.srcs[0].dtype is DType.F32:
            attrs = node.attrs
            if self.narrow is not None and attrs["dtype"] is DType.F32:
                attrs["dtype"] = self.narrow
            return build.make(node.op, [self.rounded(_as(s, DType.F32)) for s in srcs], **attrs)
        if called_graphs(node) or not self.computes(node):
            wide = [_as(new, old.types[0].dtype) if len(old.types) == 1 else new
                    for new, old in zip(srcs, node.srcs, strict=True)]  # fmt: skip
            return self.nested(node.replace(wide))
        assert self.narrow is not None
        attrs = node.attrs
        if attrs.get("dtype") is DType.F32:
            attrs["dtype"] = self.narrow
        narrow = [self.narrowed(src) for src in srcs]
        return build.make(node.op, narrow, **attrs)

    def computes(self, node: Node) -> bool:
        """Return whether a node has float32 intermediates that become narrow."""
        if self.narrow is None or node.op in _KEPT:
            return False
        return any(t.dtype is DType.F32 for t in (*node.types, *(s.types[0] for s in node.srcs)))

    def narrowed(self, x: Node) -> Node:
        assert self.narrow is not None
        return build.convert(x, self.narrow) if x.dtype is DType.F32 else x

    def nested(self, node: Node) -> Node:
        if not called_graphs(node):
            return node
        return build.make(node.op, node.srcs, **with_called(node, self.graph))


# These keep their types: leaves and calls by their nature; bits and steps of a type mean that
# type; and what adds into memory one by one would lose small addends.
_KEPT = frozenset(
    {
        *Group.LEAF, *Group.COLLECTIVE, Op.GET, Op.CUSTOM_CALL, Op.HOST_CALL, Op.BITCAST_CONVERT,
        Op.NEXTAFTER, Op.REDUCE_PRECISION, Op.SCATTER, Op.SELECT_AND_SCATTER, Op.COMPLEX, Op.REAL,
        Op.IMAG, Op.SORT, Op.TOPK,
    }
)  # fmt: skip


def _as(x: Node, dtype: DType) -> Node:
    """In the type that a kept node takes: only float32 ever becomes something else."""
    return build.convert(x, dtype) if dtype is DType.F32 else x
