"""Losses whose arguments have to be checked; PyTorch's decompositions do the others."""

from __future__ import annotations

import math

import torch
from torch.nn import _reduction

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import demand
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.pointwise import finish, formula
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten
_LEAST_LOG = -100.0  # PyTorch's bound of a logarithm, so that the loss stays finite


@lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    cx: Context, x: Node, target: Node, weight: Node | None = None, reduction: int = 1
) -> Node:
    x, target = e.together(compute_dtype(cx.dtype), x, target)
    for name, v in (("input", x), ("target", target)):
        inside = b.and_(b.greater_equal(v, e.like(v, 0)), b.less_equal(v, e.like(v, 1)))
        demand(cx, inside, f"all elements of {name} should be between 0 and 1")
    least, one = e.like(x, _LEAST_LOG), e.like(x, 1)
    of_ones = b.maximum(b.log(x), least)
    of_zeros = b.maximum(b.log1p(b.negate(x)), least)
    loss = b.subtract(b.multiply(b.subtract(target, one), of_zeros), b.multiply(target, of_ones))
    if weight is not None:
        loss = b.multiply(loss, *e.together(loss.dtype, b.broadcast_to(weight, loss.shape)))
    if reduction == _reduction.get_enum("none"):
        return finish(cx, loss)
    total = b.reduce(loss, "add", tuple(range(loss.type.rank)))
    if reduction == _reduction.get_enum("mean"):
        total = b.divide(total, e.like(total, math.prod(loss.shape)))
    return finish(cx, total)


@lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(
    cx: Context, grad: Node, x: Node, target: Node, reduction: int
) -> Node:
    # PyTorch's decomposition subtracts 1 from a logistic function of what is right already, which
    # is near 1.
    mean = reduction == _reduction.get_enum("mean")
    count = max(1, math.prod(x.shape)) if mean else 1

    def slope(g: Node, v: Node, t: Node) -> Node:
        wrong = b.logistic(b.negate(b.multiply(t, v)))
        return b.multiply(b.multiply(g, t), e.scaled(wrong, -1 / count))

    shape = tuple(cx.first.shape)
    return formula(cx, slope, *(b.broadcast_to(n, shape) for n in (grad, x, target)))
