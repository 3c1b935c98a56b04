"""Products of groups of rows with a matrix each: mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.lowerings.index import take_along
from torch_neuronx.dynamo.registry import Context, lowers, lowers_name

aten = torch.ops.aten


def _grouped(cx: Context, x: Node, y: Node, offsets: Node | None, type_: TensorType) -> Node:
    """The device's kernel: the ends of the groups are data, so no static product can do it."""
    target = aten._grouped_mm.default
    return cx.call(target, (x, y, offsets), types=(type_,), device=True)[0]


@lowers(aten._grouped_mm.default)
def grouped_mm(
    cx: Context,
    x: Node,
    y: Node,
    offsets: Node | None = None,
    bias: Node | None = None,
    out_dtype: object = None,
) -> Node:
    """Rows by a stack of matrices, columns by rows (a stack of results), or a plain batch."""
    del out_dtype
    if bias is not None:
        raise NotImplementedError("_grouped_mm with a bias")
    return _grouped(cx, x, y, offsets, cx.type)


@lowers(aten._scaled_grouped_mm.default)
def scaled_grouped_mm(
    cx: Context,
    x: Node,
    y: Node,
    scale_x: Node,
    scale_y: Node,
    offsets: Node | None = None,
    bias: Node | None = None,
    *rest: object,
) -> Node:
    """Float8 groups: the float32 product of the plain values, then the scales.

    There is a scale for every row of `x` and every column of `y`, of each of their matrices. If
    both are one matrix, whose contracted dimension is grouped, there is one for every group,
    group after group. Scales of blocks are the device's own kernel's.
    """
    wide = DType.F32
    if bias is not None or scale_x.dtype is not wide or scale_y.dtype is not wide:
        return scaled_by_device(cx, x, y, scale_x, scale_y, offsets, bias, *rest)
    type_ = TensorType(wide, cx.shape)
    total = _grouped(cx, b.convert(x, wide), b.convert(y, wide), offsets, type_)
    shape, last = total.shape, total.type.rank - 1
    rows = _scales(scale_x, x, y, offsets, shape, last - 1)
    columns = _scales(scale_y, y, x, offsets, shape, last)
    return b.convert(b.multiply(b.multiply(total, rows), columns), cx.dtype)


@lowers(aten._scaled_grouped_mm_v2.default, aten._scaled_mm_v2.default)
def scaled_by_device(cx: Context, *args: object, **kwargs: object) -> Node:
    """Products with scales of blocks: the device's own kernel, a step on the host."""
    target: Any = cx.fx.target
    cx.note_host_call(target._name)
    return cx.call(target, args, kwargs, host=True, device=True)[0]


def _scales(
    scale: Node, x: Node, other: Node, offsets: Node | None, shape: tuple[int, ...], along: int
) -> Node:
    """The scales of one operand for every element of the product.

    Args:
        scale: As PyTorch wants it.
        x: The operand that they belong to.
        other: The other operand.
        offsets: The ends of the groups.
        shape: Of the product.
        along: Which dimension of the product is that of the operand.
    """
    if len(shape) == 3:  # a product for every group
        return b.broadcast_in_dim(b.reshape(scale, (shape[0], shape[along])), shape, (0, along))
    if x.type.rank == 2:
        return b.broadcast_in_dim(scale, shape, (along,))
    # A matrix for every group: rows (or columns) of the product, by the other dimension, have
    # that of their group.
    assert offsets is not None
    assert other.type.rank == 2
    found = take_along(scale, [(0, _group_of_row(offsets, shape[1 - along]))])
    return found if along == 1 else b.swap_dims(found)


def _group_of_row(offsets: Node, rows: int) -> Node:
    """The group of every row: how many groups end before it."""
    shape = (rows, offsets.shape[0])
    ends = b.broadcast_in_dim(b.convert(offsets, DType.S64), shape, (1,))
    before = b.less_equal(ends, b.iota(DType.S64, shape, 0))
    group = b.reduce(b.convert(before, DType.S64), "add", 1)
    return b.minimum(group, e.like(group, offsets.shape[0] - 1))


# ---- transformers' own operator for experts -----------------------------------------------------
# It uses it in compiled models whose weights are not bfloat16; the meaning is that of _grouped_mm,
# with zeros for rows that belong to no group.


def _in_groups(x: Node, offsets: Node) -> Node:
    """`x` with rows after the last group cleared."""
    last = b.slice_dim(offsets, 0, offsets.shape[0] - 1, offsets.shape[0])
    end = b.broadcast_in_dim(b.convert(last, DType.S64), x.shape, (0,))
    return b.select(b.less(e.positions(x.shape, 0), end), x, e.like(x, 0))


@lowers_name("transformers::grouped_mm_fallback")
def transformers_grouped_mm(cx: Context, x: Node, weight: Node, offsets: Node) -> Node:
    ends = b.convert(offsets, DType.S32)
    return _in_groups(_grouped(cx, x, weight, ends, cx.type), offsets)


@lowers_name("transformers::grouped_mm_fallback_backward")
def transformers_grouped_mm_backward(
    cx: Context, x: Node, weight: Node, offsets: Node, grad: Node
) -> Sequence[Node]:
    ends = b.convert(offsets, DType.S32)
    for_x, for_weight = cx.types
    grad_x = _grouped(cx, grad, b.swap_dims(weight), ends, for_x)
    return _in_groups(grad_x, offsets), _grouped(cx, b.swap_dims(x), grad, ends, for_weight)
