"""Random numbers of Python, which Dynamo passes to a graph as tensors without dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.source import RandomValueSource


def with_random_numbers(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The example inputs, with random floats of the type that they have when the graph is called.

    Dynamo draws them anew at every call and passes float64, as Python computes, where its example
    has the default type. So the number is rounded first, except for what is float64 itself.
    """
    inputs = list(example_inputs)
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        argument, example = node.meta.get("grapharg"), node.meta.get("example_value")
        if not isinstance(getattr(argument, "source", None), RandomValueSource):
            continue
        if not isinstance(example, torch.Tensor) or not example.dtype.is_floating_point:
            continue
        inputs[i] = node.meta["example_value"] = example.to(torch.float64)
        with gm.graph.inserting_after(node):
            rounded = gm.graph.call_method("to", (node, example.dtype))
        rounded.meta["example_value"] = example
        node.replace_all_uses_with(rounded, delete_user_cb=lambda user: not _is_double(user))
        rounded.args = (node, example.dtype)
    gm.recompile()
    return inputs


def _is_double(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64
