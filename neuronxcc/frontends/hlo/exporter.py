"""Tensor IR as an HLO module: the importer's other direction.

What is written is XLA's own language, so that other compilers for it, the vendor's among them, can
read it. An operator that XLA doesn't have (`lgamma`, an operator of PyTorch that has no lowering)
is a custom call of the target `GRAPH_TARGET`, whose backend_config is that operator in the text
form of the tensor IR; only our importer knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronxcc.frontends.hlo.export_table import WRITERS
from neuronxcc.frontends.hlo.export_writer import Computation, ModuleWriter
from neuronxcc.frontends.hlo.graph_call import GRAPH_TARGET
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.text import to_text

_MAY_ALIAS = 1


def export_hlo(graph: Graph) -> bytes:
    """Write a graph as a serialised `HloModuleProto`; equal graphs give equal bytes.

    Args:
        graph: Its parameters become those of the entry computation, in order and with their names.
            Several results, or none, become a tuple. Positions in the user's program are kept.
    """
    writer = ModuleWriter(graph.name or "main", _body)
    entry = writer.computation("main")
    params = [entry.parameter(p.type, p["name"]) for p in graph.params]
    results = _body(entry, graph, params)
    if len(results) != 1:
        entry.tuple_(results)
    else:
        entry.proto.root_id = results[0]
    writer.finish(entry)
    for result, param in sorted(graph.aliases.items()):
        index = [result] if len(results) != 1 else []
        alias = message("AliasEntry")(
            output_shape_index=index, parameter_number=param, kind=_MAY_ALIAS
        )
        writer.proto.input_output_alias.entries.append(alias)
    content: bytes = writer.proto.SerializeToString(deterministic=True)
    return content


def _body(entry: Computation, graph: Graph, params: Sequence[int]) -> list[int]:
    """Write a graph's nodes into a computation.

    Args:
        entry: Where to.
        graph: What.
        params: Instructions that are its parameters.

    Returns:
        The instructions of its results.
    """
    values: dict[Node, tuple[int, ...]] = {
        param: (number,) for param, number in zip(graph.params, params, strict=True)
    }
    for node in graph.nodes():
        if node in values:
            continue
        if node.op is Op.GET:
            values[node] = (values[node.srcs[0]][node["index"]],)
            continue
        operands = [values[src][0] for src in node.srcs]
        entry.loc = graph.locs.get(node)
        write = WRITERS.get(node.op)
        made = write(entry, node, operands) if write is not None else None
        values[node] = _as_graph(entry, node, operands) if made is None else made
    entry.loc = None
    return [values[result][0] for result in graph.results]


def _as_graph(entry: Computation, node: Node, operands: Sequence[int]) -> tuple[int, ...]:
    """A custom call that holds the node as text."""
    params = tuple(parameter(i, src.type) for i, src in enumerate(node.srcs))
    inner = node.replace(params)
    parts: tuple[Node, ...] = (inner,)
    if len(node.types) != 1:
        parts = tuple(
            Node.make(Op.GET, type_, (inner,), {"index": i}) for i, type_ in enumerate(node.types)
        )
    fields: dict[str, Any] = {
        "custom_call_target": GRAPH_TARGET,
        "backend_config": to_text(Graph(node.op.value, params, parts)).encode(),
    }
    return entry.several("custom-call", node.types, operands, **fields)
