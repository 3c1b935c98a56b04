"""Graphs of compiled autograd, whose tensors come as one list, with arguments of their own instead.

Compiled autograd gives its graph a list, which it empties when it has taken the tensors, and the
sizes of those as numbers, mostly symbolic. A graph with symbolic sizes is compiled anew for each
set of sizes, for which its arguments have to be tensors and numbers.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx.dynamo.errors import CaptureError
from torch_neuronx.dynamo.shapes import SIZES_OF_TENSORS, has_symbolic

Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def with_flat_arguments(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_flat: Compile
) -> Callable[..., Any]:
    """Compile a graph some of whose arguments are lists.

    Args:
        gm: Dynamo's graph.
        example_inputs: Fake tensors, numbers, and lists of them.
        compile_flat: Compiles a graph whose arguments are tensors and numbers.

    Returns:
        What takes the graph's own arguments; lists that Dynamo says may be emptied are.

    Raises:
        CaptureError: the graph does something else with a list than to take its elements.
    """
    arguments = gm.graph.find_nodes(op="placeholder")
    stolen = [i for i, node in enumerate(arguments) if node.meta.get("steal_arg", False)]
    flat = _flattened(gm, example_inputs)
    # The lists hold real tensors meanwhile; which of their sizes are symbols the graph knows.
    known = [node.meta.get("example_value") for node in flat.graph.find_nodes(op="placeholder")]
    given = _leaves(example_inputs)
    compiled = compile_flat(
        flat, [g if k is None else k for g, k in zip(given, known, strict=True)]
    )

    def call(*args: Any) -> Any:
        leaves = _leaves(args)
        for i in stolen:
            args[i].clear()
        return compiled(*leaves)

    return call


def takes_symbolic(gm: torch.fx.GraphModule) -> bool:
    """Whether a tensor that the graph takes from a list has symbolic sizes.

    The lists hold real tensors while the graph is compiled, and sizes that only gradients have are
    not among the numbers.
    """
    arguments = gm.graph.find_nodes(op="placeholder")
    taken = [user.meta.get("example_value") for node in arguments for user in node.users]
    return has_symbolic(taken)


def _leaves(values: Sequence[Any]) -> list[Any]:
    """Lists replaced by what is in them."""
    return [x for value in values for x in (value if isinstance(value, list | tuple) else [value])]


def _flattened(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    graph = copy.deepcopy(gm.graph)
    for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        if not isinstance(value, list | tuple):
            continue
        with graph.inserting_before(node):
            elements = [graph.placeholder(f"{node.name}_{i}") for i in range(len(value))]
        for element, example in zip(elements, value, strict=True):
            element.meta["example_value"] = example
        for user in list(node.users):
            _take(user, elements)
        graph.erase_node(node)
    flat = torch.fx.GraphModule(gm, graph)
    flat.meta = {**gm.meta, SIZES_OF_TENSORS: True}
    return flat


def _take(user: torch.fx.Node, elements: Sequence[torch.fx.Node]) -> None:
    """Replace `list[i]` by the argument that it is."""
    if user.op != "call_function" or user.target is not operator.getitem:
        raise CaptureError(
            f"a graph with a list of tensors, of which {user.name} takes more than its elements",
            "call the function with its tensors one by one",
        )
    index = user.args[1]
    assert isinstance(index, int)
    element = elements[index]
    element.meta = {**element.meta, **user.meta}
    user.replace_all_uses_with(element)
    user.graph.erase_node(user)
