"""Fused cells of recurrent networks, which PyTorch uses on accelerators, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _wide(x: Node) -> Node:
    return b.convert(x, compute_dtype(x.dtype))


def _chunks(x: Node, count: int) -> list[Node]:
    width = x.shape[1] // count
    return [b.slice_dim(x, 1, i * width, (i + 1) * width) for i in range(count)]


def _gates(x: Node, bias: Node | None) -> Node:
    x = _wide(x)
    return x if bias is None else b.add(x, b.broadcast_to(b.convert(bias, x.dtype), x.shape))


def _slope(gate: Node) -> Node:
    """The derivative of the logistic function, from its value."""
    return b.multiply(gate, b.subtract(e.like(gate, 1), gate))


def _tanh_slope(value: Node) -> Node:
    return b.subtract(e.like(value, 1), b.multiply(value, value))


def _as(cx: Context, results: Sequence[Node | None]) -> tuple[Node | None, ...]:
    """Results in the types of those that PyTorch has; None for those that it leaves out."""
    values = [v if isinstance(v, torch.Tensor) else None for v in cx.value]
    types = iter(cx.types)
    return tuple(
        None if v is None or r is None else b.convert(r, next(types).dtype)
        for r, v in zip(results, values, strict=True)
    )


@lowers(aten._thnn_fused_lstm_cell.default)
def lstm_cell(
    cx: Context,
    input_gates: Node,
    hidden_gates: Node,
    cell: Node,
    input_bias: Node | None = None,
    hidden_bias: Node | None = None,
) -> tuple[Node | None, ...]:
    gates = b.add(_gates(input_gates, input_bias), _gates(hidden_gates, hidden_bias))
    into, forget, new, out = _chunks(gates, 4)
    into, forget, out = (b.logistic(gate) for gate in (into, forget, out))
    new = b.tanh(new)
    state = b.add(b.multiply(forget, _wide(cell)), b.multiply(into, new))
    hidden = b.multiply(out, b.tanh(state))
    return _as(cx, (hidden, state, b.concatenate([into, forget, new, out], 1)))


@lowers(aten._thnn_fused_lstm_cell_backward_impl.default)
def lstm_cell_backward(
    cx: Context,
    grad_hidden: Node | None,
    grad_state: Node | None,
    cell: Node,
    state: Node,
    workspace: Node,
    has_bias: bool,
) -> tuple[Node | None, ...]:
    into, forget, new, out = _chunks(_wide(workspace), 4)
    before, after = _wide(cell), b.tanh(_wide(state))
    total = e.like(after, 0) if grad_state is None else _wide(grad_state)
    grad_out = e.like(after, 0)
    if grad_hidden is not None:
        through = _wide(grad_hidden)
        grad_out = b.multiply(b.multiply(through, after), _slope(out))
        total = b.add(total, b.multiply(b.multiply(through, out), _tanh_slope(after)))
    parts = [
        b.multiply(b.multiply(total, new), _slope(into)),
        b.multiply(b.multiply(total, before), _slope(forget)),
        b.multiply(b.multiply(total, into), _tanh_slope(new)),
        grad_out,
    ]
    gates = b.concatenate(parts, 1)
    bias = b.reduce(gates, "add", 0) if has_bias else None
    return _as(cx, (gates, b.multiply(total, forget), bias))


@lowers(aten._thnn_fused_gru_cell.default)
def gru_cell(
    cx: Context,
    input_gates: Node,
    hidden_gates: Node,
    hidden: Node,
    input_bias: Node | None = None,
    hidden_bias: Node | None = None,
) -> tuple[Node | None, ...]:
    reset_x, keep_x, new_x = _chunks(_gates(input_gates, input_bias), 3)
    reset_h, keep_h, new_h = _chunks(_gates(hidden_gates, hidden_bias), 3)
    before = _wide(hidden)
    reset = b.logistic(b.add(reset_x, reset_h))
    keep = b.logistic(b.add(keep_x, keep_h))
    new = b.tanh(b.add(new_x, b.multiply(reset, new_h)))
    result = b.add(new, b.multiply(keep, b.subtract(before, new)))
    return _as(cx, (result, b.concatenate([reset, keep, new, before, new_h], 1)))


@lowers(aten._thnn_fused_gru_cell_backward.default)
def gru_cell_backward(
    cx: Context, grad: Node, workspace: Node, has_bias: bool
) -> tuple[Node | None, ...]:
    reset, keep, new, before, new_h = _chunks(_wide(workspace), 5)
    g, one = _wide(grad), e.like(reset, 1)
    grad_keep = b.multiply(b.multiply(g, b.subtract(before, new)), _slope(keep))
    grad_new = b.multiply(b.multiply(g, b.subtract(one, keep)), _tanh_slope(new))
    grad_new_h = b.multiply(grad_new, reset)
    grad_reset = b.multiply(b.multiply(grad_new, new_h), _slope(reset))
    from_input = b.concatenate([grad_reset, grad_keep, grad_new], 1)
    from_hidden = b.concatenate([grad_reset, grad_keep, grad_new_h], 1)
    biases = [b.reduce(x, "add", 0) if has_bias else None for x in (from_input, from_hidden)]
    return _as(cx, (from_input, from_hidden, b.multiply(g, keep), *biases))
