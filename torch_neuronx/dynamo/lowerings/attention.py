"""Fused attention: one call of the device's kernel, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import tensor_type
from torch_neuronx.dynamo.lowerings.kernels import call, stand_in
from torch_neuronx.dynamo.registry import Context, flat, lowers
from torch_neuronx.kernels import sdpa
from torch_neuronx.kernels.flash_backward import flash_backward
from torch_neuronx.kernels.flash_forward import flash_forward

aten = torch.ops.aten

_OVERRIDEABLE = aten._scaled_dot_product_fused_attention_overrideable.default
_OVERRIDEABLE_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
_EFFICIENT = aten._scaled_dot_product_efficient_attention.default
_EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default
_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_CPU_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@lowers(_OVERRIDEABLE)
def attention(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """(output, logsumexp, then fields that the neuron operator leaves empty)."""
    query, key, value, *others = args
    key, value = _shared_heads(query, key, value)
    kernel = attention_kernel(cx, query, key, value, *others, **kwargs)
    if kernel is not None:
        return kernel
    out, logsumexp = cx.call(
        _OVERRIDEABLE,
        (query, key, value, *others),
        kwargs,
        types=cx.types[:2],
        outs=(0, 1, *(None,) * 7),
        device=True,
    )
    # Then seed and offset of a dropout that is not done here; the backward pass hands them back.
    return [out, logsumexp, *_empty(cx.value[2:])]


@lowers(_EFFICIENT)
def efficient_attention(
    cx: Context, query: Node, key: Node, value: Node, bias: Any, with_lse: bool,
    dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
) -> Sequence[Any]:  # fmt: skip
    """The same kernel by the name that it has for DTensors: (output, logsumexp, seed, offset).

    In graphs the logsumexp has rows up to a multiple of 32, or none; the kernel has one per query.
    """
    key, value = _shared_heads(query, key, value)
    out_type, lse_type, *_ = cx.types
    kernel = attention_kernel(cx, query, key, value, bias, dropout, causal, scale=scale)
    if kernel is None:
        args = (query, key, value, bias, with_lse, dropout, causal)
        out, lse = _efficient(cx, out_type, args, scale)
    else:
        out, lse = kernel[:2]
    if not lse_type.size:
        return [out, *_empty(cx.value[1:])]
    extra = lse_type.shape[-1] - query.shape[2]
    padded = build.pad(lse, 0.0, (0, 0, 0), (0, 0, extra)) if extra else lse
    return [out, padded, *_empty(cx.value[2:])]


def _efficient(
    cx: Context, out_type: TensorType, args: Sequence[Any], scale: float | None
) -> tuple[Node, ...]:
    """(output, logsumexp of every query)."""
    rows = TensorType(DType.F32, args[0].shape[:3])
    return cx.call(
        _EFFICIENT, args, {"scale": scale}, types=(out_type, rows), outs=(0, 1, None, None),
        device=True,
    )  # fmt: skip


@lowers(_EFFICIENT_BACKWARD)
def efficient_attention_backward(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """(dq, dk, dv, None)."""
    given = list(args)
    grad, query, key, value, bias, out, lse, _, _, dropout, *rest = given
    causal = rest[1] if len(rest) > 1 else False
    if lse.type.size:
        lse = build.slice_(lse, (0, 0, 0), (*lse.shape[:2], query.shape[2]))
    else:  # nobody asked for it; the kernel computes it all the same
        forward = (query, key, value, bias, True, dropout, causal)
        _, lse = _efficient(cx, out.type, forward, kwargs.get("scale"))
    given[6] = lse
    operands = (grad, query, key, value, bias, None, out, lse, None, None, None, None)
    kernel = attention_backward_kernel(cx, *operands, dropout, causal, **kwargs)
    if kernel is not None:
        return kernel
    return _gradients(cx, _EFFICIENT_BACKWARD, given, kwargs)


def _gradients(
    cx: Context, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Sequence[Any]:
    """A call of the device's operator for (dq, dk, dv, None), as far as these are wanted."""
    wanted = [i for i, v in enumerate(flat(cx.value)) if isinstance(v, torch.Tensor) and i < 3]
    places = [wanted.index(i) if i in wanted else None for i in range(4)]
    types = cx.types[: len(wanted)]
    results = cx.call(operator, args, kwargs, types=types, outs=places, device=True)
    return [None if p is None else results[p] for p in places]


def _empty(values: Sequence[Any]) -> list[Any]:
    return [_zero(v) if isinstance(v, torch.Tensor) else v for v in values]


def attention_kernel(
    cx: Context, query: Node, key: Node, value: Node, bias: Any = None, dropout: float = 0.0,
    causal: bool = False, _debug: bool = False, *, scale: float | None = None,
) -> list[Any] | None:  # fmt: skip
    """The kernel of NKI, if the environment asks for it and it takes the operands."""
    if not sdpa.enabled() or not cx.on_device:
        return None
    operands = [query, key, value]
    given = [stand_in(x) for x in operands]
    if not sdpa.takes(*given, bias=bias, dropout=dropout):
        return None
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    out, lse = call(cx, flash_forward, operands, (*given, factor, causal))
    return [out, lse, *_empty(cx.value[2:])]


def attention_backward_kernel(
    cx: Context, *args: Any, scale: float | None = None
) -> list[Any] | None:
    """The kernel of the gradients, under the same conditions."""
    if not sdpa.enabled() or not cx.on_device:
        return None
    grad, query, key, value, bias, _, out, lse, *rest = args
    operands = [grad, query, key, value, out, lse]
    given = [stand_in(x) for x in operands]
    masked = None if bias is None or not bias.type.size else bias
    if not sdpa.takes(*given[1:4], bias=masked, dropout=rest[4]):
        return None
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    grads = call(cx, flash_backward, operands, (*given, factor, rest[5]))
    wanted = [isinstance(v, torch.Tensor) for v in flat(cx.value)]
    return [g if w else None for g, w in zip((*grads, None), wanted, strict=True)]


def _shared_heads(query: Node, key: Node, value: Node) -> tuple[Node, Node]:
    """Keys and values before their heads were repeated, one after the other, for several queries.

    The operator takes them as they are, and a cache of them need not be copied.
    """
    once = [_unrepeated(key), _unrepeated(value)]
    heads = {x.shape[1] for x in once}
    if len(heads) == 1 and query.type.rank == 4 and query.shape[1] % heads.pop() == 0:
        return once[0], once[1]
    return key, value


def _unrepeated(x: Node) -> Node:
    """[batch, heads, keys, width] whose heads are each repeated: the tensor of different heads."""
    if x.op is not Op.RESHAPE or x.type.rank != 4:
        return x
    spread = x.srcs[0]
    if spread.op is not Op.BROADCAST_IN_DIM or spread.type.rank != 5:
        return x
    batch, heads, repeats, keys, width = spread.shape
    (source,) = spread.srcs
    single = (batch, heads, keys, width)
    if x.shape != (batch, heads * repeats, keys, width) or source.type.size != math.prod(single):
        return x
    kept = [(d, n) for d, n in zip(spread["dims"], source.shape, strict=True) if d != 2]
    return (
        build.reshape(source, single) if kept == list(zip((0, 1, 3, 4), single, strict=True)) else x
    )


def _zero(value: torch.Tensor) -> Node:
    type_ = tensor_type(value)
    return e.number(0, type_.dtype, type_.shape)


@lowers(_OVERRIDEABLE_BACKWARD)
def attention_backward(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Any]:
    """(dq, dk, dv, None)."""
    kernel = attention_backward_kernel(cx, *args, **kwargs)
    if kernel is not None:
        return kernel
    return _gradients(cx, _OVERRIDEABLE_BACKWARD, args, kwargs)


@lowers(_CPU, _CPU_BACKWARD)
def attention_of_cpu(cx: Context, *args: Any, **kwargs: Any) -> Sequence[Node]:
    """Lower the operator of graphs of CPU tensors."""
    target = cx.fx.target
    assert isinstance(target, torch._ops.OpOverload)
    return cx.call(target, args, kwargs)
