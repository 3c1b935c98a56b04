"""A custom call that holds a graph of the tensor IR as text: operators that XLA doesn't have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import Site, Value
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.text import parse
from neuronxcc.ir.verify import VerifierError, verify

#: Ours: no other compiler knows it.
GRAPH_TARGET: Final = "TorchNeuronGraph"


def graph_call(site: Site) -> Value:
    """The graph in the backend_config, applied to the operands.

    Raises:
        RefusedError: The text is no graph, or one of other parameters.
    """
    graph = _graph(site)
    given, taken = ([node.type for node in nodes] for nodes in (site.tensors, graph.params))
    if given != taken:
        raise invalid(f"{GRAPH_TARGET} of {_listed(given)} holds a graph of {_listed(taken)}")
    values: dict[Node, Node] = dict(zip(graph.params, site.tensors, strict=True))
    for node in graph.nodes():
        if node not in values:
            values[node] = node.replace(values[src] for src in node.srcs)
    results = tuple(values[result] for result in graph.results)
    return results if isinstance(site.type, tuple) else results[0]


def _graph(site: Site) -> Graph:
    try:
        graph = parse(site.proto.backend_config.decode())
        verify(graph)
    # A parser's text errors are ValueErrors; of numbers and nesting Python has its own.
    except (ValueError, OverflowError, TypeError, RecursionError, VerifierError) as error:
        raise invalid(f"the backend_config of {GRAPH_TARGET} is no graph: {error}") from None
    if not graph.results:
        raise invalid(f"the graph of {GRAPH_TARGET} has no results")
    return graph


def _listed(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"
