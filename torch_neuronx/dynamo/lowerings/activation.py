"""Activations and their gradients, in float32 inside as PyTorch's kernels are."""

from __future__ import annotations

import math

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.lowerings.pointwise import at_least, at_most, formula
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten

_BETA = math.sqrt(2) * 2 / math.sqrt(math.pi) * 0.5
_KAPPA = 0.044715


def _gelu_tanh_gate(v: Node) -> Node:
    """(1 + tanh u) / 2 as 1 / (1 + e^-2u), which does not cancel."""
    slope = b.add(b.multiply(b.multiply(v, v), e.like(v, 2 * _BETA * _KAPPA)), e.like(v, 2 * _BETA))
    return b.logistic(b.multiply(v, slope))


@lowers(aten.gelu.default)
def gelu(cx: Context, x: Node, *, approximate: str = "none") -> Node:
    gate = _gelu_tanh_gate if approximate == "tanh" else b.normal_cdf
    return formula(cx, lambda v: b.multiply(v, gate(v)), x)


@lowers(aten.gelu_backward.default)
def gelu_backward(cx: Context, grad: Node, x: Node, *, approximate: str = "none") -> Node:
    def of(g: Node, v: Node) -> Node:
        one = e.like(v, 1)
        if approximate == "tanh":
            s = _gelu_tanh_gate(v)
            slope = b.add(
                b.multiply(b.multiply(v, v), e.like(v, 6 * _BETA * _KAPPA)), e.like(v, 2 * _BETA)
            )
            inner = b.multiply(b.multiply(v, b.multiply(s, b.subtract(one, s))), slope)
            return b.multiply(g, b.add(inner, s))
        return b.multiply(g, b.add(b.normal_cdf(v), b.multiply(v, b.normal_pdf(v))))

    return formula(cx, of, grad, x)


@lowers(aten.silu.default)
def silu(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.multiply(v, b.logistic(v)), x)


@lowers(aten.silu_backward.default)
def silu_backward(cx: Context, grad: Node, x: Node) -> Node:
    def of(g: Node, v: Node) -> Node:
        s, one = b.logistic(v), e.like(v, 1)
        slope = b.add(one, b.multiply(v, b.subtract(one, s)))
        return b.multiply(b.multiply(g, s), slope)

    return formula(cx, of, grad, x)


@lowers(aten.sigmoid_backward.default)
def sigmoid_backward(cx: Context, grad: Node, y: Node) -> Node:
    def of(g: Node, s: Node) -> Node:
        if s.dtype.is_complex:
            s = b.conj(s)
        return b.multiply(b.multiply(g, b.subtract(e.like(s, 1), s)), s)

    return formula(cx, of, grad, y)


@lowers(aten.tanh_backward.default)
def tanh_backward(cx: Context, grad: Node, y: Node) -> Node:
    def of(g: Node, t: Node) -> Node:
        if t.dtype.is_complex:
            t = b.conj(t)
        return b.multiply(g, b.subtract(e.like(t, 1), b.multiply(t, t)))

    return formula(cx, of, grad, y)


@lowers(aten.threshold.default)
def threshold(cx: Context, x: Node, limit: float, value: float) -> Node:
    return formula(
        cx, lambda v: b.select(b.less_equal(v, e.like(v, limit)), e.like(v, value), v), x
    )


@lowers(aten.threshold_backward.default)
def threshold_backward(cx: Context, grad: Node, x: Node, limit: float) -> Node:
    return formula(
        cx, lambda g, v: b.select(b.less_equal(v, e.like(v, limit)), e.like(g, 0), g), grad, x
    )


@lowers(aten.leaky_relu.default)
def leaky_relu(cx: Context, x: Node, slope: float = 0.01) -> Node:
    return formula(
        cx, lambda v: b.select(b.greater(v, e.like(v, 0)), v, b.multiply(v, e.like(v, slope))), x
    )


@lowers(aten.leaky_relu_backward.default)
def leaky_relu_backward(
    cx: Context, grad: Node, x: Node, slope: float, _self_is_result: bool
) -> Node:
    return formula(
        cx,
        lambda g, v: b.select(b.greater(v, e.like(v, 0)), g, b.multiply(g, e.like(g, slope))),
        grad,
        x,
    )


@lowers(aten.elu.default)
def elu(
    cx: Context, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Node:
    def of(v: Node) -> Node:
        low = e.scaled(b.expm1(e.scaled(v, input_scale)), alpha * scale)
        return b.select(b.less(v, e.like(v, 0)), low, e.scaled(v, scale))

    return formula(cx, of, x)


@lowers(aten.elu_backward.default)
def elu_backward(
    cx: Context,
    grad: Node,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Node,
) -> Node:
    negative = alpha * scale

    def of(g: Node, v: Node) -> Node:
        if is_result:
            slope = e.scaled(b.add(v, e.like(v, negative)), input_scale)
        else:
            slope = e.scaled(b.exp(e.scaled(v, input_scale)), input_scale * negative)
        low = b.multiply(g, slope)
        return b.select(b.less_equal(v, e.like(v, 0)), low, e.scaled(g, scale))

    return formula(cx, of, grad, x)


@lowers(aten.softplus.default)
def softplus(cx: Context, x: Node, beta: float = 1, limit: float = 20) -> Node:
    def of(v: Node) -> Node:
        z = e.scaled(v, beta)
        soft = b.divide(b.log1p(b.exp(z)), e.like(v, beta))
        return b.select(b.greater(z, e.like(v, limit)), v, soft)

    return formula(cx, of, x)


@lowers(aten.softplus_backward.default)
def softplus_backward(cx: Context, grad: Node, x: Node, beta: float, limit: float) -> Node:
    def of(g: Node, v: Node) -> Node:
        z = e.scaled(v, beta)
        # As PyTorch: g * e^z / (e^z + 1), which its logistic is.
        soft = b.multiply(g, b.logistic(z))
        return b.select(b.greater(z, e.like(v, limit)), g, soft)

    return formula(cx, of, grad, x)


@lowers(aten.hardtanh.default)
def hardtanh(cx: Context, x: Node, low: float = -1, high: float = 1) -> Node:
    return formula(cx, lambda v: at_most(at_least(v, low), high), x)


@lowers(aten.hardtanh_backward.default)
def hardtanh_backward(cx: Context, grad: Node, x: Node, low: float, high: float) -> Node:
    def of(g: Node, v: Node) -> Node:
        outside = b.or_(b.less_equal(v, e.like(v, low)), b.greater_equal(v, e.like(v, high)))
        return b.select(outside, e.like(g, 0), g)

    return formula(cx, of, grad, x)


def _relu6(v: Node) -> Node:
    return b.clamp(e.like(v, 0), b.add(v, e.like(v, 3)), e.like(v, 6))


@lowers(aten.hardsigmoid.default)
def hardsigmoid(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.divide(_relu6(v), e.like(v, 6)), x)


@lowers(aten.hardswish.default)
def hardswish(cx: Context, x: Node) -> Node:
    return formula(cx, lambda v: b.divide(b.multiply(v, _relu6(v)), e.like(v, 6)), x)


@lowers(aten.hardswish_backward.default)
def hardswish_backward(cx: Context, grad: Node, x: Node) -> Node:
    def of(g: Node, v: Node) -> Node:
        middle = b.multiply(g, b.add(b.divide(v, e.like(v, 3)), e.like(v, 0.5)))
        result = b.select(b.less(v, e.like(v, 3)), middle, g)
        return b.select(b.less_equal(v, e.like(v, -3)), e.like(g, 0), result)

    return formula(cx, of, grad, x)


@lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(cx: Context, x: Node) -> tuple[Node, Node]:
    def of(v: Node) -> Node:
        tail = b.log1p(b.exp(b.negate(b.abs_(v))))
        return b.subtract(b.minimum(v, e.like(v, 0)), tail)

    # The buffer is for the CPU kernel of the gradient, which this compiler does not use.
    buffer = cx.types[1]
    return formula(cx, of, x), e.number(0, buffer.dtype, buffer.shape)


@lowers(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(cx: Context, grad: Node, x: Node, _buffer: Node) -> Node:
    return formula(cx, lambda g, v: b.multiply(g, b.logistic(b.negate(v))), grad, x)
