"""Normalisations and their gradients, in float32 inside."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.reduce import moments
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten
Results = tuple[Node | None, ...]


def _outer(x: Node, normalized: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that a layer norm reduces."""
    return tuple(range(x.type.rank - len(normalized), x.type.rank))


def _wide(x: Node) -> Node:
    return b.convert(x, compute_dtype(x.dtype))


def _affine(y: Node, weight: Node | None, bias: Node | None, dims: Sequence[int]) -> Node:
    """Y * weight + bias, these lying along `dims`."""
    for node, function in ((weight, b.multiply), (bias, b.add)):
        if node is not None:
            spread = b.broadcast_in_dim(b.convert(node, y.dtype), y.shape, dims)
            y = function(y, spread)
    return y


def _inverse_root(variance: Node, eps: float) -> Node:
    return b.rsqrt(b.add(variance, e.like(variance, eps)))


@lowers(aten.native_layer_norm.default)
def layer_norm(
    cx: Context,
    x: Node,
    normalized: Sequence[int],
    weight: Node | None,
    bias: Node | None,
    eps: float,
) -> Results:
    over = _outer(x, normalized)
    v = _wide(x)
    average, variance = moments(v, over)
    rstd = _inverse_root(variance, eps)
    y = b.multiply(b.subtract(v, e.back(average, v.shape, over)), e.back(rstd, v.shape, over))
    y = _affine(y, weight, bias, over)
    stats = [
        b.convert(b.reshape(s, t.shape), t.dtype)
        for s, t in zip((average, rstd), cx.types[1:], strict=True)
    ]
    return (b.convert(y, cx.dtype), *stats)


def _masked(results: Sequence[Node | None], wanted: Sequence[bool]) -> Results:
    return tuple(r if w else None for r, w in zip(results, wanted, strict=True))


def _as(x: Node | None, like: Node) -> Node | None:
    return None if x is None else b.convert(x, like.dtype)


@lowers(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    cx: Context,
    grad: Node,
    x: Node,
    normalized: Sequence[int],
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    mask: Sequence[bool],
) -> Results:
    del cx
    over = _outer(x, normalized)
    rest = tuple(range(x.type.rank - len(normalized)))
    g, v = _wide(grad), _wide(x)

    def stat(s: Node) -> Node:
        return b.broadcast_in_dim(
            b.reshape(b.convert(s, v.dtype), [v.shape[d] for d in rest]), v.shape, rest
        )

    scale = stat(rstd)
    hat = b.multiply(b.subtract(v, stat(mean)), scale)
    spread = g if weight is None else _affine(g, weight, None, over)
    grad_x = None
    if mask[0]:
        count = math.prod(v.shape[d] for d in over)
        inner = _projected(spread, hat, over, count)
        grad_x = b.convert(b.multiply(inner, scale), x.dtype)
    grad_w = b.reduce(b.multiply(g, hat), "add", rest) if mask[1] and weight is not None else None
    grad_b = b.reduce(g, "add", rest) if mask[2] and bias is not None else None
    return (
        grad_x,
        None if grad_w is None or weight is None else b.convert(grad_w, weight.dtype),
        None if grad_b is None or bias is None else b.convert(grad_b, bias.dtype),
    )


def _projected(g: Node, hat: Node, over: Sequence[int], count: int) -> Node:
    """G - mean(g) - hat * mean(g * hat): the gradient of a normalisation but for its scale."""
    weight = e.like(b.reduce(g, "add", over), 1 / count if count else 0.0)
    first = b.multiply(b.reduce(g, "add", over), weight)
    second = b.multiply(b.reduce(b.multiply(g, hat), "add", over), weight)
    inner = b.subtract(g, e.back(first, g.shape, over))
    return b.subtract(inner, b.multiply(hat, e.back(second, g.shape, over)))


@lowers(aten._fused_rms_norm.default)
def rms_norm(
    cx: Context, x: Node, normalized: Sequence[int], weight: Node | None, eps: float | None
) -> Results:
    over = _outer(x, normalized)
    v = _wide(x)
    epsilon = torch.finfo(_torch_dtype(cx)).eps if eps is None else eps
    count = math.prod(v.shape[d] for d in over)
    square = b.reduce(b.multiply(v, v), "add", over)
    rstd = _inverse_root(b.divide(square, e.like(square, count)), epsilon)
    y = _affine(b.multiply(v, e.back(rstd, v.shape, over)), weight, None, over)
    stat = cx.types[1]
    return b.convert(y, cx.dtype), b.convert(b.reshape(rstd, stat.shape), stat.dtype)


def _torch_dtype(cx: Context) -> torch.dtype:
    """The type that the epsilon belongs to: the one that PyTorch computes in."""
    return torch.float32 if compute_dtype(cx.dtype) is DType.F32 else cx.first.dtype


@lowers(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    cx: Context,
    grad: Node,
    x: Node,
    normalized: Sequence[int],
    rstd: Node,
    weight: Node | None,
    mask: Sequence[bool],
) -> Results:
    del cx
    over = _outer(x, normalized)
    rest = tuple(range(x.type.rank - len(normalized)))
    g, v = _wide(grad), _wide(x)
    inverse = b.reshape(b.convert(rstd, v.dtype), [v.shape[d] for d in rest])
    scale = b.broadcast_in_dim(inverse, v.shape, rest)
    hat = b.multiply(v, scale)
    spread = g if weight is None else _affine(g, weight, None, over)
    grad_x = grad_w = None
    if mask[0]:
        count = math.prod(v.shape[d] for d in over)
        along = b.reduce(b.multiply(spread, hat), "add", over)
        along = b.divide(along, e.like(along, count))
        inner = b.subtract(spread, b.multiply(hat, e.back(along, v.shape, over)))
        grad_x = b.convert(b.multiply(inner, scale), x.dtype)
    if mask[1] and weight is not None:
        grad_w = b.convert(b.reduce(b.multiply(g, hat), "add", rest), weight.dtype)
    return grad_x, grad_w


# ---- group norm ---------------------------------------------------------------------------------


@lowers(aten.native_group_norm.default)
def group_norm(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    eps: float,
) -> Results:
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.shape != (c,):
            text = (
                f"Expected {name} to be a vector of size equal to the number of channels in input, "
                f"but got {name} of shape {list(t.shape)} and input of shape {list(x.shape)}"
            )
            raise cx.refused(text)
    grouped = b.reshape(_wide(x), (n, groups, c // groups, hxw))
    average, variance = moments(grouped, (2, 3))
    rstd = _inverse_root(variance, eps)
    y = b.multiply(
        b.subtract(grouped, e.back(average, grouped.shape, (2, 3))),
        e.back(rstd, grouped.shape, (2, 3)),
    )
    y = _affine(b.reshape(y, (n, c, hxw)), weight, bias, (1,))
    y = b.convert(b.reshape(y, x.shape), cx.dtype)
    stats = cx.types[1:]
    return y, b.convert(average, stats[0].dtype), b.convert(rstd, stats[1].dtype)


@lowers(aten.native_group_norm_backward.default)
def group_norm_backward(
    cx: Context,
    grad: Node,
    x: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    mask: Sequence[bool],
) -> Results:
    shape = (n, groups, c // groups, hxw)
    g, v = (b.reshape(_wide(t), shape) for t in (grad, x))
    average, inverse = (
        e.back(b.convert(b.reshape(s, (n, groups)), v.dtype), shape, (2, 3)) for s in (mean, rstd)
    )
    hat = b.multiply(b.subtract(v, average), inverse)
    spread = g
    if weight is not None:
        by_channel = b.reshape(b.convert(weight, v.dtype), (groups, c // groups))
        spread = b.multiply(g, b.broadcast_in_dim(by_channel, shape, (1, 2)))
    inner = _projected(spread, hat, (2, 3), c // groups * hxw)
    # PyTorch's rule for tracing leaves it in the type of the arithmetic where types are mixed.
    grad_x = b.convert(b.reshape(b.multiply(inner, inverse), x.shape), cx.types[0].dtype)
    dtype = x.dtype if weight is None else weight.dtype
    grad_w = b.convert(b.reshape(b.reduce(b.multiply(g, hat), "add", (0, 3)), (c,)), dtype)
    grad_b = b.convert(b.reshape(b.reduce(g, "add", (0, 3)), (c,)), dtype)
    return _masked((grad_x, grad_w, grad_b), mask)


# ---- batch norm ---------------------------------------------------------------------------------


def _channels(x: Node) -> tuple[int, ...]:
    """All dimensions but the channels."""
    return tuple(d for d in range(x.type.rank) if d != 1)


def _normalized(
    x: Node, average: Node, inverse: Node, weight: Node | None, bias: Node | None
) -> Node:
    over = _channels(x)
    # One multiply-add per element: the factors are worked out per channel.
    factor = inverse
    if weight is not None:
        factor = b.multiply(inverse, b.convert(weight, x.dtype))
    shift = b.negate(b.multiply(average, factor))
    if bias is not None:
        shift = b.add(shift, b.convert(bias, x.dtype))
    return b.add(b.multiply(x, e.back(factor, x.shape, over)), e.back(shift, x.shape, over))


def _updated(running: Node | None, batch: Node, momentum: float) -> Node | None:
    if running is None:
        return None
    old = b.convert(running, batch.dtype)
    new = b.add(
        b.multiply(old, e.like(old, 1 - momentum)), b.multiply(batch, e.like(batch, momentum))
    )
    return b.convert(new, running.dtype)


def _train(
    x: Node,
    weight: Node | None,
    bias: Node | None,
    running: tuple[Node | None, Node | None],
    momentum: float,
    eps: float,
) -> tuple[Node, Node, Node, Node | None, Node | None]:
    """(y, mean, 1/std, new running mean, new running variance), computed from the batch."""
    v = _wide(x)
    over = _channels(v)
    average, variance = moments(v, over)
    inverse = _inverse_root(variance, eps)
    count = v.type.size // max(v.shape[1], 1)
    unbiased = b.multiply(variance, e.like(variance, count / max(count - 1, 1)))
    y = b.convert(_normalized(v, average, inverse, weight, bias), x.dtype)
    new_mean = _updated(running[0], average, momentum)
    return y, average, inverse, new_mean, _updated(running[1], unbiased, momentum)


def _eval(
    x: Node, weight: Node | None, bias: Node | None, mean: Node, variance: Node, eps: float
) -> Node:
    v = _wide(x)
    inverse = _inverse_root(b.convert(variance, v.dtype), eps)
    average = b.convert(mean, v.dtype)
    return b.convert(_normalized(v, average, inverse, weight, bias), x.dtype)


def _stats(cx: Context, first: int, *stats: Node | None) -> list[Node | None]:
    return [
        None if s is None else b.convert(s, t.dtype)
        for s, t in zip(stats, cx.types[first : first + len(stats)], strict=True)
    ]


def _nothing(cx: Context, first: int, count: int) -> list[Node]:
    return [e.number(0, t.dtype, t.shape) for t in cx.types[first : first + count]]


@lowers(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    if not training:
        y = _eval(x, weight, bias, mean, variance, eps)
        return (y, *_nothing(cx, 1, 2), *_stats(cx, 3, mean, variance))
    y, average, inverse, new_mean, new_variance = _train(
        x, weight, bias, (mean, variance), momentum, eps
    )
    return (y, *_stats(cx, 1, average, inverse), *_stats(cx, 3, new_mean, new_variance))


@lowers(aten._batch_norm_with_update_functional.default)
def batch_norm_update_functional(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    momentum: float,
    eps: float,
) -> Results:
    y, average, inverse, new_mean, new_variance = _train(
        x, weight, bias, (mean, variance), momentum, eps
    )
    stats = _stats(cx, 1, average, inverse)
    return (y, *stats, *_nothing(cx, 3, 1), *_stats(cx, 4, new_mean, new_variance))


@lowers(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    _training: bool,
    momentum: float,
    eps: float,
) -> Results:
    y, average, inverse, _, _ = _train(x, weight, bias, (None, None), momentum, eps)
    return (y, *_stats(cx, 1, average, inverse))


@lowers(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    _momentum: float,
    eps: float,
) -> Results:
    return (_eval(x, weight, bias, mean, variance, eps), *_nothing(cx, 1, 2))


@lowers(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    cx: Context,
    x: Node,
    weight: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    _momentum: float,
    eps: float,
) -> Results:
    return (_eval(x, weight, bias, mean, variance, eps), *_nothing(cx, 1, 3))


@lowers(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    cx: Context,
    grad: Node,
    x: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_invstd: Node | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Results:
    del cx
    g, v = _wide(grad), _wide(x)
    over = _channels(v)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        average, inverse = (b.convert(s, v.dtype) for s in (save_mean, save_invstd))
    else:
        assert running_mean is not None
        assert running_var is not None
        average = b.convert(running_mean, v.dtype)
        inverse = _inverse_root(b.convert(running_var, v.dtype), eps)
    hat = b.multiply(b.subtract(v, e.back(average, v.shape, over)), e.back(inverse, v.shape, over))
    scale = inverse if weight is None else b.multiply(inverse, b.convert(weight, v.dtype))
    inner = _projected(g, hat, over, v.type.size // max(v.shape[1], 1)) if train else g
    grad_x = b.convert(b.multiply(inner, e.back(scale, v.shape, over)), x.dtype)
    dtype = x.dtype if weight is None else weight.dtype
    grad_w = b.convert(b.reduce(b.multiply(g, hat), "add", over), dtype)
    grad_b = b.convert(b.reduce(g, "add", over), dtype)
    return _masked((grad_x, grad_w, grad_b), mask)


@lowers(aten.batch_norm_backward.default)
def batch_norm_backward_update(
    cx: Context,
    grad: Node,
    x: Node,
    weight: Node,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_var: Node | None,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    _reserve: Node,
) -> Results:
    return batch_norm_backward(
        cx, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, mask
    )


@lowers(aten._weight_norm_interface.default)
def weight_norm(cx: Context, v: Node, g: Node, dim: int = 0) -> Results:
    w = _wide(v)
    over = tuple(d for d in range(w.type.rank) if d != dim % w.type.rank)
    size = b.sqrt(b.reduce(b.multiply(w, w), "add", over))
    size = e.keep_dims(size, w.shape, over)
    factor = b.divide(_wide(g), b.convert(size, _wide(g).dtype))
    y = b.multiply(w, b.broadcast_to(b.convert(factor, w.dtype), w.shape))
    norm = cx.types[1]
    return b.convert(y, cx.dtype), b.convert(b.reshape(size, norm.shape), norm.dtype)


@lowers(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    cx: Context, grad: Node, v: Node, g: Node, norms: Node, dim: int
) -> Results:
    w = _wide(v)
    over = tuple(d for d in range(w.type.rank) if d != dim % w.type.rank)
    size, scale = (b.broadcast_to(b.convert(t, w.dtype), w.shape) for t in (norms, g))
    go = b.convert(grad, w.dtype)
    along = e.keep_dims(b.reduce(b.multiply(go, w), "add", over), w.shape, over)
    share = b.broadcast_to(along, w.shape)
    square = b.multiply(size, size)
    inner = b.subtract(go, b.divide(b.multiply(w, share), square))
    grad_v = b.multiply(b.divide(scale, size), inner)
    grad_g = b.divide(along, b.convert(norms, w.dtype))
    types = cx.types
    return b.convert(grad_v, types[0].dtype), b.convert(grad_g, types[1].dtype)
