"""Collectives that write their arguments, as collectives that don't.

PyTorch's functionalization refuses operators that return an argument they wrote, which is what the
forms in place do. In Dynamo's graph each becomes a function that says the same with a functional
collective and a copy, which AOTAutograd traces into and the compiler places like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

functional = torch.ops._c10d_functional


def _write(target: Tensor, result: Tensor) -> None:
    """As the process group does, behind autograd's back."""
    target.detach().copy_(functional.wait_tensor(result))


def all_reduce_(input: Tensor, reduce_op: str, group_name: Any) -> Tensor:
    """The sum (or another reduction) of all ranks, in the place of `input`."""
    _write(input, functional.all_reduce(input.detach(), reduce_op, group_name))
    return input


def all_reduce_coalesced_(inputs: list[Tensor], reduce_op: str, group_name: Any) -> list[Tensor]:
    """The same of several tensors."""
    operands = [tensor.detach() for tensor in inputs]
    results = functional.all_reduce_coalesced(operands, reduce_op, group_name)
    for tensor, result in zip(inputs, results, strict=True):
        _write(tensor, result)
    return inputs


def broadcast_(input: Tensor, src: int, group_name: Any) -> Tensor:
    """The tensor of rank `src`, in the place of `input`."""
    _write(input, functional.broadcast(input.detach(), src, group_name))
    return input


# The parameters are named as in the schemas: a graph may pass them by name.
_IN_PLACE: dict[str, Callable[..., Any]] = {
    "_c10d_functional::all_reduce_": all_reduce_,
    "_c10d_functional::all_reduce_coalesced_": all_reduce_coalesced_,
    "_c10d_functional::broadcast_": broadcast_,
}


def _name(target: object) -> str:
    if isinstance(target, OpOverload):
        return target._schema.name
    return target._qualified_op_name if isinstance(target, OpOverloadPacket) else ""


def functionalize(gm: torch.fx.GraphModule) -> None:
    """Replace the collectives in place of a graph of Dynamo's and of the graphs inside it."""
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        found = [(node, _IN_PLACE.get(_name(node.target))) for node in module.graph.nodes]
        for node, function in found:
            if function is not None:
                node.target = function
        if any(function is not None for _, function in found):
            module.recompile()
