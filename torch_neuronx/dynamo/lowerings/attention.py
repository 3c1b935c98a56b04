"""Fused attention: one call of the device's kernel, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import tensor_type
from torch_neuronx.dynamo.registry import Context, flat, lowers

aten = torch.ops.aten

_OVERRIDEABLE = aten._scaled_dot_product_fused_attention_overrideable.default
_OVERRIDEABLE_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@lowers(_OVERRIDEABLE)
def attention(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """(output, logsumexp, then fields that the neuron operator leaves empty)."""
    out, logsumexp = cx.call(
        _OVERRIDEABLE,
        args,
        kwargs,
        types=cx.types[:2],
        outs=(0, 1, *(None,) * 7),
        device=True,
    )
    # Then seed and offset of a dropout that is not done here; the backward pass hands them back.
    rest = [_zero(v) if isinstance(v, torch.Tensor) else v for v in cx.value[2:]]
    return [out, logsumexp, *rest]


def _zero(value: torch.Tensor) -> Node:
    type_ = tensor_type(value)
    return e.number(0, type_.dtype, type_.shape)


@lowers(_OVERRIDEABLE_BACKWARD)
def attention_backward(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """(dq, dk, dv, None)."""
    wanted = [i for i, v in enumerate(flat(cx.value)) if isinstance(v, torch.Tensor) and i < 3]
    places = [wanted.index(i) if i in wanted else None for i in range(4)]
    types = cx.types[: len(wanted)]
    results = cx.call(_OVERRIDEABLE_BACKWARD, args, kwargs, types=types, outs=places, device=True)
    return [None if p is None else results[p] for p in places]


@lowers(_CPU, _CPU_BACKWARD)
def attention_of_cpu(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Node]:
    """What graphs of CPU tensors have."""
    target = cx.fx.target
    assert isinstance(target, torch._ops.OpOverload)
    return cx.call(target, args, kwargs)
