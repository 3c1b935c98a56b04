"""Assertions on tensors that AOTAutograd would drop."""

from __future__ import annotations

import torch

aten = torch.ops.aten
# What eager mode says.
TEXT = "Expected Tensor with single nonzero value, but got zero"


def give_texts(gm: torch.fx.GraphModule) -> None:
    """Give `torch._assert_async(x)` the text that it has in eager mode.

    AOTAutograd keeps the overload with a text, as an effect, and drops the other one as unused.

    Args:
        gm: Dynamo's graph; it is changed, and the graphs in it.
    """
    without = (torch._assert_async, aten._assert_async, aten._assert_async.default)
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        found = False
        for node in module.graph.nodes:
            if node.target in without and len(node.args) + len(node.kwargs) == 1:
                node.target = aten._assert_async.msg
                node.args = (*node.args, *node.kwargs.values(), TEXT)
                node.kwargs = {}
                found = True
        if found:
            module.recompile()
