"""Complex numbers."""

from __future__ import annotations

import math

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.pointwise import finish, formula
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.complex.default)
def complex_(cx: Context, real: Node, imag: Node) -> Node:
    part = DType.F32 if cx.dtype is DType.C64 else DType.F64
    return b.complex_(*e.together(part, real, imag))


@lowers(aten.polar.default)
def polar(cx: Context, size: Node, angle: Node) -> Node:
    part = DType.F32 if cx.dtype is DType.C64 else DType.F64
    size, angle = e.together(part, size, angle)
    return b.complex_(b.multiply(size, b.cos(angle)), b.multiply(size, b.sin(angle)))


@lowers(aten.real.default)
def real(_cx: Context, x: Node) -> Node:
    return b.real(x) if x.dtype.is_complex else x


@lowers(aten.imag.default)
def imag(_cx: Context, x: Node) -> Node:
    return b.imag(x)


@lowers(
    aten._conj.default,
    aten._conj_physical.default,
    aten.conj_physical.default,
    aten._conj_copy.default,
)
def conj(_cx: Context, x: Node) -> Node:
    return b.conj(x) if x.dtype.is_complex else x


@lowers(aten.resolve_conj.default, aten.resolve_neg.default)
def resolved(_cx: Context, x: Node) -> Node:
    return x


@lowers(aten._neg_view.default, aten._neg_view_copy.default)
def neg_view(cx: Context, x: Node) -> Node:
    return formula(cx, b.negate, x)


@lowers(aten.angle.default)
def angle(cx: Context, x: Node) -> Node:
    if x.dtype.is_complex:
        return b.atan2(b.imag(x), b.real(x))
    v = b.convert(x, compute_dtype(cx.dtype))
    sign = b.select(b.less(v, e.like(v, 0)), e.like(v, math.pi), e.like(v, 0))
    return finish(cx, b.select(b.is_nan(v), v, sign))


@lowers(aten.view_as_real.default, aten.view_as_real_copy.default)
def view_as_real(_cx: Context, x: Node) -> Node:
    return b.stack([b.real(x), b.imag(x)], x.type.rank)


@lowers(aten.view_as_complex.default, aten.view_as_complex_copy.default)
def view_as_complex(_cx: Context, x: Node) -> Node:
    last = x.type.rank - 1
    parts = [b.reshape(b.slice_dim(x, last, i, i + 1), x.shape[:-1]) for i in range(2)]
    return b.complex_(parts[0], parts[1])
