"""Random operators: the device's own, so that a seeded model draws the numbers that eager draws.

Each occurrence is a call with a place in the order of effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.lowerings.memory import from_memory, in_memory, memory_order
from torch_neuronx.dynamo.lowerings.pointwise import formula
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(
    aten.rand.default,
    aten.randn.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint.default,
    aten.randint.low,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.randperm.default,
    aten.bernoulli.default,
    aten.bernoulli.p,
    aten.bernoulli.Tensor,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.normal.Tensor_float,
    aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
    aten.normal.float_float,
    aten.exponential.default,
    aten.geometric.default,
    aten.log_normal.default,
    aten.cauchy.default,
    aten.random.default,
    aten.rand.generator,
    aten.randn.generator,
    aten.rand_like.generator,
    aten.randn_like.generator,
    aten.randint.generator,
    aten.randint.low_generator,
    aten.randint_like.generator,
    aten.randint_like.low_generator_dtype,
    aten.randperm.generator,
    getattr(aten.random, "from"),
    aten.random.to,
    aten.multinomial.default,
    aten.poisson.default,
    aten.binomial.default,
    aten._standard_gamma.default,
    aten._sample_dirichlet.default,
    aten.rrelu_with_noise_functional.default,
)
def draw(cx: Context, *args: Any, **kwargs: Any) -> Any:
    target = cx.fx.target
    assert isinstance(target, torch._ops.OpOverload)
    if any(a.name == "dtype" for a in target._schema.arguments) and not kwargs.get("dtype"):
        kwargs["dtype"] = cx.first.dtype
    results = cx.call(target, args, kwargs, device=True, effect=True)
    return results if isinstance(cx.value, list | tuple) else results[0]


@lowers(aten.native_dropout.default)
def native_dropout(cx: Context, x: Node, p: float, train: bool | None) -> Sequence[Node]:
    if train is False or not x.type.size:
        return x, e.number(value=True, dtype=cx.types[1].dtype, shape=x.shape)
    if p == 1:
        return b.multiply(x, e.like(x, 0)), e.number(0, cx.types[1].dtype, x.shape)
    # Eager mode draws in the order of memory, whichever dimension comes first.
    order = memory_order(cx.first)
    if order is None or order == sorted(order):
        return cx.call(aten.native_dropout.default, (x, p, train), device=True, effect=True)
    types = [TensorType(t.dtype, (t.size,)) for t in cx.types]
    given = (in_memory(x, order), p, train)
    results = cx.call(aten.native_dropout.default, given, types=types, device=True, effect=True)
    return [from_memory(result, x.shape, order) for result in results]


@lowers(aten.native_dropout_backward.default)
def native_dropout_backward(cx: Context, grad: Node, mask: Node, scale: float) -> Node:
    # PyTorch's decomposition rounds the scale to the gradient's type.
    if grad.dtype is DType.PRED:
        grad = b.convert(grad, cx.dtype)
    kept = b.multiply(grad, b.convert(mask, grad.dtype))
    return formula(cx, lambda v: e.scaled(v, scale), kept)
