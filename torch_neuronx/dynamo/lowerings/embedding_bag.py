"""Bags of embeddings: a call of the device's kernel, or of the CPU's in graphs of CPU tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node, TensorType
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import promote_types, tensor_type
from torch_neuronx.dynamo.lowerings.index import put_along
from torch_neuronx.dynamo.lowerings.library import called
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    cx: Context, weight: Node, indices: Node, offsets: Node, *rest: Any
) -> tuple[Node | None, ...]:
    """(output, the bag of each index, the bags' sizes, where the maxima are).

    The device's kernel keeps for the gradient what PyTorch's fake kernel says. The CPU's does not
    always: it leaves the bags of indices out in bfloat16, and has other integers where indices and
    offsets differ in type.
    """
    if cx.on_device:
        kept: tuple[Node | None, ...] = called(cx, weight, indices, offsets, *rest, device=True)
        return kept
    target = cx.fx.target
    assert isinstance(target, OpOverload)
    integers = promote_types(indices.dtype, offsets.dtype)
    promised = cx.types
    taken = {user.args[1] for user in cx.fx.users}
    wanted = [0, *(i for i in (2, 3) if i in taken)]
    results = cx.call(
        target,
        (weight, indices, offsets, *rest),
        types=[promised[0], *(TensorType(integers, promised[i].shape) for i in wanted[1:])],
        outs=[wanted.index(i) if i in wanted else None for i in range(4)],
    )
    found: list[Node | None] = [None] * 4
    for number, result in zip(wanted, results, strict=True):
        found[number] = b.convert(result, promised[number].dtype)
    if 1 in taken:
        found[1] = _bag_of_each(tensor_type(cx.value[1]), offsets)
    return tuple(found)


def _bag_of_each(type_: TensorType, offsets: Node) -> Node:
    """For each index the bag that it is in: how many bags have begun there, less one."""
    (count,) = type_.shape
    if not count:
        return e.number(0, type_.dtype, type_.shape)
    starts = b.convert(offsets, type_.dtype)
    none = e.number(0, type_.dtype, (count + 1,))  # an offset may be that of the end
    begun = put_along(none, [(0, starts)], e.like(starts, 1), "add")
    bags = b.cumulative(b.slice_dim(begun, 0, 0, count), "add", 0)
    return b.subtract(bags, e.like(bags, 1))
