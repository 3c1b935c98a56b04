"""Tensors out of nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.compat.operators import linspace_counts_wide
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


@lowers(aten.full.default)
def full(cx: Context, _size: Sequence[int], fill: Value, **_options: object) -> Node:
    return b.broadcast_to(e.value(fill, cx.dtype), cx.shape)


@lowers(aten.full_like.default, aten.fill.Scalar, aten.fill.Tensor)
def full_like(cx: Context, _x: Node, fill: Value, **_options: object) -> Node:
    return b.broadcast_to(e.value(fill, cx.dtype), cx.shape)


@lowers(aten.new_full.default)
def new_full(cx: Context, _x: Node, _size: Sequence[int], fill: Value, **_options: object) -> Node:
    return b.broadcast_to(e.value(fill, cx.dtype), cx.shape)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(cx: Context, fill: Scalar, **_options: object) -> Node:
    return e.number(fill, cx.dtype)


# What is in uninitialised memory is anybody's guess; zeros are as good a guess as any.
@lowers(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.empty_permuted.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten._efficientzerotensor.default,
)
def zeros(cx: Context, *_args: Any, **_options: Any) -> Node:
    return e.number(0, cx.dtype, cx.shape)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(cx: Context, *_args: Any, **_options: Any) -> Node:
    return e.number(1, cx.dtype, cx.shape)


@lowers(aten.arange.start_step)
def arange(cx: Context, start: Scalar, end: Scalar, step: Scalar = 1, **_options: object) -> Node:
    del end
    # PyTorch counts in float64 for floats and in int64 for integers.
    exact = DType.F64 if cx.dtype.is_float else DType.S64
    if exact is DType.S64 and start == 0 and step == 1:
        return b.iota(cx.dtype, cx.shape, 0)
    steps = e.scaled(b.iota(exact, cx.shape, 0), step)
    return b.convert(b.add(steps, e.like(steps, start)), cx.dtype)


@lowers(aten.arange.default)
def arange_end(cx: Context, end: Scalar, **options: object) -> Node:
    return arange(cx, 0, end, 1, **options)


@lowers(aten.arange.start)
def arange_start(cx: Context, start: Scalar, end: Scalar, **options: object) -> Node:
    return arange(cx, start, end, 1, **options)


@lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(cx: Context, start: Value, end: Value, steps: int, **_options: object) -> Node:
    if cx.dtype.is_complex:
        part = DType.F32 if cx.dtype is DType.C64 else DType.F64
        ends = [e.value(v, cx.dtype) for v in (start, end)]
        return b.complex_(
            _linspace(cx, part, [b.real(v) for v in ends], steps),
            _linspace(cx, part, [b.imag(v) for v in ends], steps),
        )
    return _linspace(cx, cx.dtype, [e.value(v, cx.dtype) for v in (start, end)], steps)


def _linspace(cx: Context, dtype: DType, ends: list[Node], steps: int) -> Node:
    """Each half counts from its own end, in the roundings of ATen's kernel.

    ATen converts the ends to the result's type first, integers too. From there float32 multiplies
    and adds in one rounding, which float64 gives here; integers count in float64 and are cut.
    16-bit types round after every operation, or count in float32 (`linspace_counts_wide`), where
    float16 multiplies before it adds.
    """
    if steps < 2:
        return b.broadcast_to(ends[0], cx.shape)
    narrow = dtype.is_float and dtype.itemsize == 2
    counted = DType.F32 if narrow and linspace_counts_wide() else dtype
    wide = DType.F32 if counted.is_float and counted.itemsize == 2 else DType.F64
    separate = wide is DType.F32 or dtype is DType.F16

    def rounded(x: Node) -> Node:
        return b.convert(b.convert(x, counted), wide) if dtype.is_float else x

    first, last = (b.convert(v, wide) for v in ends)
    step = rounded(b.divide(rounded(b.subtract(last, first)), rounded(e.like(first, steps - 1))))
    place = b.iota(DType.S64, cx.shape, 0)
    first, last, step = (b.broadcast_to(v, cx.shape) for v in (first, last, step))

    def moved(combine: Callable[[Node, Node], Node], end: Node, count: Node) -> Node:
        distance = b.multiply(step, rounded(b.convert(count, wide)))
        return combine(end, rounded(distance) if separate else distance)

    result = b.select(
        b.less(place, e.like(place, steps // 2)),
        moved(b.add, first, place),
        moved(b.subtract, last, b.subtract(e.like(place, steps - 1), place)),
    )
    return b.convert(rounded(result) if narrow else result, dtype)


@lowers(torch.ops.prims.iota.default)
def iota(cx: Context, _length: int, *, start: int, step: int, **_options: object) -> Node:
    return arange(cx, start, 0, step)


@lowers(aten.eye.default, aten.eye.m)
def eye(cx: Context, *_size: int, **_options: object) -> Node:
    same = b.equal(b.iota(DType.S64, cx.shape, 0), b.iota(DType.S64, cx.shape, 1))
    return b.convert(same, cx.dtype)


def _triangle(cx: Context, x: Node, diagonal: int, *, upper: bool) -> Node:
    rows, columns = (e.positions(x.shape, d) for d in (x.type.rank - 2, x.type.rank - 1))
    edge = b.add(rows, e.like(rows, diagonal))
    keep = b.greater_equal(columns, edge) if upper else b.less_equal(columns, edge)
    return b.select(keep, x, e.number(0, cx.dtype, x.shape))


@lowers(aten.tril.default)
def tril(cx: Context, x: Node, diagonal: int = 0) -> Node:
    return _triangle(cx, x, diagonal, upper=False)


@lowers(aten.triu.default)
def triu(cx: Context, x: Node, diagonal: int = 0) -> Node:
    return _triangle(cx, x, diagonal, upper=True)
