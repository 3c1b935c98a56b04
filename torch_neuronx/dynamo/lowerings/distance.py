"""Distances between rows, and products of three tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import checked
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.index import put_along, take_along
from torch_neuronx.dynamo.lowerings.pointwise import finish, sign_of
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _norm(x: Node, p: float, dim: int) -> Node:
    size = b.abs_(x)
    if p == 0:
        # 0 or 1 for each, and NaN for NaN.
        return b.reduce(b.minimum(b.ceil(size), e.like(size, 1)), "add", dim)
    if p == 1:
        return b.reduce(size, "add", dim)
    if p == 2:
        return b.sqrt(b.reduce(b.multiply(x, x), "add", dim))
    if math.isinf(p):
        return b.reduce(size, "max", dim)
    total = b.reduce(b.power(size, e.like(size, p)), "add", dim)
    return b.power(total, e.like(total, 1 / p))


def _norm_slope(apart: Node, size: Node, p: float) -> Node:
    """The derivative of `size`, the p-norm of `apart` repeated to its shape."""
    zero = e.like(apart, 0)
    if p == 0:
        return zero
    sign = b.select(b.equal(apart, apart), sign_of(apart), apart)  # NaN for NaN
    if p == 1:
        return sign
    if math.isinf(p):
        # 1 where it is the largest, else 0; NaN where that can't be said.
        beyond = b.ceil(b.abs_(b.subtract(b.abs_(apart), size)))
        return b.multiply(sign, b.subtract(e.like(size, 1), b.minimum(beyond, e.like(size, 1))))
    safe = b.select(b.equal(size, zero), e.like(size, 1), size)
    if p == 2:
        slope = b.divide(apart, safe)
    else:
        steep = b.power(b.abs_(apart), e.like(apart, p - 1))
        slope = b.divide(b.multiply(sign, steep), b.power(safe, e.like(safe, p - 1)))
        if p < 1:
            slope = b.select(b.equal(apart, zero), zero, slope)
    return b.select(b.equal(size, zero), zero, slope)


def _apart(x: Node, y: Node, lead: Sequence[int]) -> Node:
    """x[..., i, :] - y[..., j, :] as (..., i, j, :)."""
    rows, columns, width = x.shape[-2], y.shape[-2], x.shape[-1]
    shape = (*lead, rows, columns, width)
    x = b.broadcast_to(b.reshape(x, (*x.shape[:-1], 1, width)), shape)
    y = b.broadcast_to(b.reshape(y, (*y.shape[:-2], 1, columns, width)), shape)
    return b.subtract(x, y)


@lowers(aten._cdist_forward.default)
def cdist(cx: Context, x: Node, y: Node, p: float, _mode: int | None) -> Node:
    wide = compute_dtype(cx.dtype)
    if not x.shape[-1]:
        return e.number(0, cx.dtype, cx.shape)
    apart = _apart(b.convert(x, wide), b.convert(y, wide), cx.shape[:-2])
    return finish(cx, _norm(apart, p, apart.type.rank - 1))


@lowers(aten._cdist_backward.default)
def cdist_backward(cx: Context, grad: Node, x: Node, y: Node, p: float, dist: Node) -> Node:
    wide = compute_dtype(cx.dtype)
    if not cx.type.size:
        return e.number(0, cx.dtype, cx.shape)
    lead = dist.shape[:-2]
    apart = _apart(b.convert(x, wide), b.convert(y, wide), lead)
    last = (apart.type.rank - 1,)
    spread = [e.back(b.convert(t, wide), apart.shape, last) for t in (dist, grad)]
    total = b.reduce(b.multiply(spread[1], _norm_slope(apart, spread[0], p)), "add", last[0] - 1)
    return finish(cx, e.sum_to(total, cx.shape))


def _pairs(rows: int) -> tuple[Node, Node]:
    first, second = np.triu_indices(rows, 1)
    return b.constant(first.astype(np.int64)), b.constant(second.astype(np.int64))


@lowers(aten._pdist_forward.default)
def pdist(cx: Context, x: Node, p: float = 2) -> Node:
    if not cx.type.size or not x.shape[1]:
        return e.number(0, cx.dtype, cx.shape)
    v = b.convert(x, compute_dtype(cx.dtype))
    first, second = (take_along(v, [(0, i)]) for i in _pairs(x.shape[0]))
    return finish(cx, _norm(b.subtract(first, second), p, 1))


@lowers(aten._pdist_backward.default)
def pdist_backward(cx: Context, grad: Node, x: Node, p: float, dist: Node) -> Node:
    if not dist.type.size or not cx.type.size:
        return e.number(0, cx.dtype, cx.shape)
    wide = compute_dtype(cx.dtype)
    v = b.convert(x, wide)
    places = _pairs(x.shape[0])
    apart = b.subtract(*(take_along(v, [(0, i)]) for i in places))
    size, g = (e.back(b.convert(t, wide), apart.shape, (1,)) for t in (dist, grad))
    change = b.multiply(g, _norm_slope(apart, size, p))
    total = put_along(e.number(0, wide, x.shape), [(0, places[0])], change, "add")
    return finish(cx, put_along(total, [(0, places[1])], b.negate(change), "add"))


@lowers(aten._trilinear.default)
def trilinear(
    cx: Context,
    x: Node,
    y: Node,
    z: Node,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    over: Sequence[int],
    _unroll: int = 1,
) -> Node:
    wide = compute_dtype(cx.dtype)
    parts = [
        b.expand_dims(b.convert(t, wide), tuple(sorted(dims))) if dims else b.convert(t, wide)
        for t, dims in ((x, expand_x), (y, expand_y), (z, expand_z))
    ]
    product = b.multiply(*b.broadcast_together(parts[0], parts[1]))
    product = b.multiply(*b.broadcast_together(product, parts[2]))
    return finish(cx, b.reduce(product, "add", tuple(over)))


@lowers(aten.embedding_renorm.default)
def embedding_renorm(cx: Context, weight: Node, indices: Node, limit: float, p: float) -> Node:
    wide = compute_dtype(cx.dtype)
    w = b.convert(weight, wide)
    size = _norm(w, p, 1)
    flat = b.reshape(indices, (indices.type.size,))
    flat = checked(cx, flat, 0, w.shape[0], f"index out of range in self: {{}} of {w.shape[0]}")
    ones = e.number(1, wide, flat.shape)
    used = e.not_zero(put_along(e.like(size, 0), [(0, flat)], ones, "add"))
    factor = b.divide(e.like(size, limit), b.add(size, e.like(size, 1e-7)))
    change = b.and_(used, b.greater(size, e.like(size, limit)))
    factor = b.select(change, factor, e.like(size, 1))
    return finish(cx, b.multiply(w, e.back(factor, w.shape, (1,))))
