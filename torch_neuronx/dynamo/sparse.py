"""Sparse tensors in captured graphs: what makes them, and what takes them, runs after the program.

A program's memory is dense. The gradient of `Embedding(sparse=True)` is made by the last operator
of a backward graph, from indices and values that are dense: the program computes these, and the
eager device makes the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.dynamo.boxes import Boxed, takes_list
from torch_neuronx.dynamo.errors import CaptureError
from torch_neuronx.dynamo.locations import location, operator_name
from torch_neuronx.dynamo.registry import flat


def split(gm: GraphModule) -> tuple[GraphModule, Callable[[Boxed], Boxed] | None]:
    """Take a graph of AOTAutograd's apart where sparse tensors begin.

    Returns:
        The graph of what can be compiled, and what completes its function: None if the graph has no
        sparse tensors (then it is the one that was given).

    Raises:
        CaptureError: What follows a sparse tensor changes something, or waits for other ranks.
    """
    late = _late(gm)
    if not late:
        return gm, None
    (output,) = gm.graph.find_nodes(op="output")
    returned = flat(list(output.args[0]))
    inputs = (node for taker in late for node in taker.all_input_nodes)
    passed = [node for node in dict.fromkeys(inputs) if node not in late]
    kept = [value for value in returned if value not in late]
    early = _early_graph(gm, [*kept, *passed], late)
    tail = _tail_graph(gm, passed, late, [value for value in returned if value in late])

    def complete(run: Boxed) -> Boxed:
        def call(args: list[Any]) -> list[Any]:
            results = run(args)
            dense = iter(results[: len(kept)])
            made = iter(tail(*results[len(kept) :]))
            return [next(made) if value in late else next(dense) for value in returned]

        return takes_list(call)

    return early, complete


def _late(gm: GraphModule) -> dict[Node, None]:
    """The nodes with sparse results, and all that need them, in order."""
    late: dict[Node, None] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if any(map(_is_sparse, flat(node.meta.get("val")))) or any(
            source in late for source in node.all_input_nodes
        ):
            _check(node)
            late[node] = None
    return late


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _check(node: Node) -> None:
    target = node.target
    if not isinstance(target, OpOverload):
        return  # an element of a tuple, arithmetic on sizes
    random = torch.Tag.nondeterministic_seeded in target.tags
    if random or target._schema.is_mutable or target.namespace not in {"aten", "prims"}:
        raise CaptureError(
            f"{operator_name(target)} of what was computed from a sparse tensor: programs have "
            "dense tensors, so it would run after the program, out of order",
            "convert the sparse tensor outside of the compiled function, call the layer that makes "
            "it under torch.compiler.disable, or leave sparse=True out",
            location(node),
        )


def _early_graph(gm: GraphModule, returned: list[Any], late: dict[Node, None]) -> GraphModule:
    copies: dict[Node, Node] = {}
    graph = Graph()
    for node in gm.graph.nodes:
        if node.op != "output" and node not in late:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies.get(value, value) for value in returned))
    return GraphModule(gm, graph)


def _tail_graph(
    gm: GraphModule, passed: list[Node], late: dict[Node, None], returned: list[Node]
) -> GraphModule:
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in passed}
    for node in late:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in returned))
    return GraphModule(gm, graph)
