"""Operators on lists of tensors (optimizers): the operator of each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.registry import TABLE, Context, lowers

aten = torch.ops.aten
Nodes = Sequence[Node]

# _foreach_<name> of one list
UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
# _foreach_<name> with a second operand: the operator that each element takes
BINARY: dict[str, OpOverload] = {
    "add": aten.add.Tensor,
    "sub": aten.sub.Tensor,
    "mul": aten.mul.Tensor,
    "div": aten.div.Tensor,
    "maximum": aten.maximum.default,
    "minimum": aten.minimum.default,
    "clamp_max": aten.clamp_max.Tensor,
    "clamp_min": aten.clamp_min.Tensor,
    "pow": aten.pow.Tensor_Tensor,
}
TERNARY: dict[str, OpOverload] = {
    "addcmul": aten.addcmul.default,
    "addcdiv": aten.addcdiv.default,
}


def element(cx: Context, index: int) -> Context:
    """The context of one element of the result."""
    return cx.part(cx.value[index])


def _unary(target: OpOverload, cx: Context, xs: Nodes) -> tuple[Node, ...]:
    return tuple(TABLE[target](element(cx, i), x) for i, x in enumerate(xs))


def _binary(
    target: OpOverload, cx: Context, xs: Nodes, ys: Any, alpha_: Scalar = 1, *, alpha: Scalar = 1
) -> tuple[Node, ...]:
    others = ys if isinstance(ys, list | tuple) else [ys] * len(xs)
    scaled = target in {aten.add.Tensor, aten.sub.Tensor}
    options = {"alpha": alpha if e.is_one(alpha_) else alpha_} if scaled else {}
    lowering = TABLE[target]
    return tuple(
        lowering(element(cx, i), x, y, **options)
        for i, (x, y) in enumerate(zip(xs, others, strict=True))
    )


def _ternary(
    target: OpOverload, cx: Context, xs: Nodes, ys: Nodes, zs: Nodes, values: Any = 1, **named: Any
) -> tuple[Node, ...]:
    values = named.get("value", named.get("scalars", values))
    parts: list[Any]
    if isinstance(values, Node):
        # A tensor of one factor per list element.
        parts = [b.reshape(b.slice_dim(values, 0, i, i + 1), ()) for i in range(len(xs))]
    else:
        parts = list(values) if isinstance(values, list | tuple) else [values] * len(xs)
    operator = b.multiply if target is aten.addcmul.default else b.divide
    results = []
    for i, (x, y, z, v) in enumerate(zip(xs, ys, zs, parts, strict=True)):
        if isinstance(v, Node):
            wide = compute_dtype(x.dtype)
            x_, y_, z_, v_ = e.together(wide, x, y, z, v)
            results.append(b.convert(b.add(x_, b.multiply(v_, operator(y_, z_))), x.dtype))
        else:
            results.append(TABLE[target](element(cx, i), x, y, z, value=v))
    return tuple(results)


def _enter() -> None:
    for name in UNARY:
        lowers(getattr(aten, f"_foreach_{name}").default)(
            partial(_unary, getattr(aten, name).default)
        )
    for names, function in ((BINARY, _binary), (TERNARY, _ternary)):
        for name, target in names.items():
            packet = getattr(aten, f"_foreach_{name}")
            for overload in packet.overloads():
                if not overload.endswith("out") and overload != "ScalarAndTensor":
                    lowers(getattr(packet, overload))(partial(function, target))


_enter()


@lowers(aten._foreach_pow.ScalarAndTensor)
def foreach_power_of(cx: Context, base: Scalar, xs: Nodes) -> tuple[Node, ...]:
    lowering = TABLE[aten.pow.Scalar]
    return tuple(lowering(element(cx, i), base, x) for i, x in enumerate(xs))


@lowers(aten._foreach_lerp.List, aten._foreach_lerp.Scalar, aten._foreach_lerp.ScalarList)
def foreach_lerp(cx: Context, xs: Nodes, ys: Nodes, weights: Any) -> tuple[Node, ...]:
    each = weights if isinstance(weights, list | tuple) else [weights] * len(xs)
    lowering = TABLE[aten.lerp.Scalar]
    return tuple(
        lowering(element(cx, i), x, y, w)
        for i, (x, y, w) in enumerate(zip(xs, ys, each, strict=True))
    )


@lowers(aten._foreach_copy.default)
def foreach_copy(cx: Context, _xs: Nodes, ys: Nodes, _non_blocking: bool = False) -> Nodes:
    return tuple(
        b.broadcast_to(b.convert(y, t.dtype), t.shape) for y, t in zip(ys, cx.types, strict=True)
    )


@lowers(aten._foreach_zero.default)
def foreach_zero(cx: Context, _xs: Nodes) -> Nodes:
    return tuple(e.number(0, t.dtype, t.shape) for t in cx.types)


@lowers(aten._foreach_norm.Scalar)
def foreach_norm(cx: Context, xs: Nodes, order: Scalar = 2, *, dtype: object = None) -> Nodes:
    del dtype
    lowering = TABLE[aten.linalg_vector_norm.default]
    return tuple(lowering(element(cx, i), x, order) for i, x in enumerate(xs))


@lowers(aten._foreach_max.default)
def foreach_max(cx: Context, xs: Nodes) -> Nodes:
    lowering = TABLE[aten.max.default]
    return tuple(lowering(element(cx, i), x) for i, x in enumerate(xs))


# ---- fused optimizer steps ----------------------------------------------------------------------


def _power(base: float, step: Node) -> Node:
    return b.power(e.like(step, base), step)


def _number(x: Value, like: Node) -> Node:
    return b.broadcast_to(e.value(x, like.dtype), like.shape)


def _gradient(grad: Node, like: Node, grad_scale: Node | None, maximize: bool) -> tuple[Node, Node]:
    """The gradient without its scale, which the step stores, and the direction that it steps by."""
    unscaled = b.convert(grad, like.dtype)
    if grad_scale is not None:
        unscaled = b.divide(unscaled, _number(grad_scale, unscaled))
    return unscaled, b.negate(unscaled) if maximize else unscaled


def _adam(
    decoupled: bool,
    cx: Context,
    params: Nodes,
    grads: Nodes,
    averages: Nodes,
    squares: Nodes,
    maxima: Nodes,
    steps: Nodes,
    *,
    lr: Value,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Node | None = None,
    found_inf: Node | None = None,
) -> Any:
    """(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs) after the step; steps stay."""
    del cx
    results: list[list[Node]] = [[], [], [], [], []]
    for i, old in enumerate(params):
        wide = compute_dtype(old.dtype)
        p, m, v = (b.convert(t, wide) for t in (old, averages[i], squares[i]))
        unscaled, g = _gradient(grads[i], p, grad_scale, maximize)
        step = b.convert(steps[i], wide)
        if weight_decay and decoupled:
            p = b.subtract(p, b.multiply(_number(lr, p), e.scaled(p, weight_decay)))
        elif weight_decay:
            g = b.add(g, e.scaled(p, weight_decay))
        m = b.add(m, e.scaled(b.subtract(g, m), 1 - beta1))
        v = b.add(e.scaled(v, beta2), e.scaled(b.multiply(g, g), 1 - beta2))
        one = e.like(step, 1)
        first = b.subtract(one, _power(beta1, step))
        second = b.sqrt(b.subtract(one, _power(beta2, step)))
        top = v
        if amsgrad:
            top = b.maximum(b.convert(maxima[i], wide), v)
        size = b.add(b.divide(b.sqrt(top), _number(second, p)), e.like(p, eps))
        rate = b.divide(e.value(lr, wide), b.reshape(first, ()))
        p = b.subtract(p, b.multiply(_number(rate, p), b.divide(m, size)))
        changes = [(p, old), (unscaled, grads[i]), (m, averages[i]), (v, squares[i])]
        if amsgrad:
            changes.append((top, maxima[i]))
        for place, (new, before) in enumerate(changes):
            results[place].append(_unless(found_inf, b.convert(new, before.dtype), before))
    return tuple(tuple(part) for part in results)


@lowers(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
def _sgd(
    cx: Context,
    params: Nodes,
    grads: Nodes,
    momenta: Nodes,
    *,
    weight_decay: float,
    momentum: float,
    lr: Value,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Node | None = None,
    found_inf: Node | None = None,
) -> Any:
    """(params, grads, momentum buffers) after the step."""
    del cx
    results: list[list[Node]] = [[], [], []]
    for i, old in enumerate(params):
        wide = compute_dtype(old.dtype)
        p = b.convert(old, wide)
        unscaled, g = _gradient(grads[i], p, grad_scale, maximize)
        if weight_decay:
            g = b.add(g, e.scaled(p, weight_decay))
        if momenta:
            m = g
            if not is_first_step:
                before = b.convert(momenta[i], wide)
                m = b.add(e.scaled(before, momentum), e.scaled(g, 1 - dampening))
            new = b.convert(m, momenta[i].dtype)
            results[2].append(_unless(found_inf, new, momenta[i]))
            g = b.add(g, e.scaled(m, momentum)) if nesterov else m
        p = b.subtract(p, b.multiply(_number(lr, p), g))
        results[0].append(_unless(found_inf, b.convert(p, old.dtype), old))
        results[1].append(_unless(found_inf, b.convert(unscaled, grads[i].dtype), grads[i]))
    return tuple(tuple(part) for part in results)


def _unless(found_inf: Node | None, new: Node, old: Node) -> Node:
    if found_inf is None:
        return new
    bad = b.broadcast_to(e.not_zero(b.reshape(found_inf, ())), new.shape)
    return b.select(bad, old, new)


def _enter_adam() -> None:
    for name, decoupled in (("adam", False), ("adamw", True)):
        packet = getattr(aten, f"_fused_{name}")
        function: Callable[..., Any] = partial(_adam, decoupled)
        lowers(packet.default, packet.tensor_lr)(function)


_enter_adam()
