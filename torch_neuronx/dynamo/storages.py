"""Arguments that a graph gives other memory: `x.data = y`, or `x.set_(y)`.

AOTAutograd leaves `aten.set_` of an argument at the end of the graph, for the first of them
`aten.shallow_copy_data_` since PyTorch 2.14. A program writes to the memory of its arguments and
can't give them another one, so that is done when it has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torch_neuronx.compat.operators import replacing_memory
from torch_neuronx.dynamo.boxes import Boxed, takes_list


def split(gm: GraphModule) -> tuple[GraphModule, Callable[[Boxed], Boxed] | None]:
    """Take these calls for arguments out of a graph of AOTAutograd's.

    Returns:
        The graph without them, which returns the new memory too, and what completes its function:
        None if there is none (then it is the graph that was given).
    """
    numbers = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    replacing = replacing_memory()
    replaced = {
        node: node.args[1]
        for node in gm.graph.nodes
        if node.target in replacing and node.args[0] in numbers
    }
    if not replaced:
        return gm, None
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        if node.op == "output":
            (returned,) = node.args
            assert isinstance(returned, list | tuple)
            own = len(returned)
            values = torch.fx.map_arg((*returned, *replaced.values()), copies.__getitem__)
            graph.output(values)
        elif node in replaced:
            copies[node] = copies[replaced[node]]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    targets = [(numbers[node.args[0]], node.target) for node in replaced]

    def complete(run: Boxed) -> Boxed:
        def call(args: list[Any]) -> list[Any]:
            kept = [args[i] for i, _ in targets]
            results = run(args)
            for target, (_, replace), source in zip(kept, targets, results[own:], strict=True):
                replace(target, source)
            return results[:own]

        return takes_list(call)

    return GraphModule(gm, graph), complete
