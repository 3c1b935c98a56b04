"""Quantization in plain tensors: fake quantization, and what PyTorch's passes insert."""

from __future__ import annotations

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.emit import Value
from torch_neuronx.dynamo.registry import Context, lowers, lowers_name

aten = torch.ops.aten


def _for_channels(x: Node, values: Value, axis: int | None, dtype: DType) -> Node:
    """One number for all of `x`, or one per position along `axis`."""
    node = b.convert(e.value(values, dtype), dtype)
    if axis is None:
        return b.broadcast_to(b.reshape(node, ()), x.shape)
    return b.broadcast_in_dim(node, x.shape, (axis % x.type.rank,))


def _levels(x: Node, inverse: Node, zero: Node) -> Node:
    """The level of every element before it is limited; rounds half to even, as PyTorch does."""
    return b.add(b.round_even(b.multiply(x, inverse)), zero)


def _fake(
    cx: Context, x: Node, scale: Value, zero: Value, axis: int | None, low: int, high: int
) -> tuple[Node, Node]:
    """(x rounded to the levels, whether it was inside them)."""
    wide = DType.F32
    x = b.convert(x, wide)
    factor, shift = (_for_channels(x, v, axis, wide) for v in (scale, zero))
    inverse = b.divide(e.like(factor, 1), factor)
    if isinstance(zero, Node) and zero.dtype.is_float:  # rounded with it, not before
        levels = b.round_even(b.add(b.multiply(x, inverse), shift))
    else:
        levels = _levels(x, inverse, shift)
    least, most = e.like(levels, low), e.like(levels, high)
    limited = b.minimum(b.maximum(levels, least), most)
    # NaN has the lowest level: the kernels convert to an integer before they limit.
    limited = b.select(b.equal(levels, levels), limited, least)
    inside = b.and_(b.greater_equal(levels, least), b.less_equal(levels, most))
    return b.convert(b.multiply(b.subtract(limited, shift), factor), cx.dtype), inside


@lowers(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize(
    cx: Context, x: Node, scale: float, zero: int, low: int, high: int
) -> tuple[Node, Node]:
    return _fake(cx, x, scale, zero, None, low, high)


@lowers(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def fake_quantize_by_tensors(
    cx: Context, x: Node, scale: Node, zero: Node, enabled: Node, low: int, high: int
) -> tuple[Node, Node]:
    # Of a zero point that is a float the kernels take the integer, unlike those of channels.
    zero = b.convert(zero, DType.S32)
    result, inside = _fake(cx, x, scale, zero, None, low, high)
    on = b.broadcast_to(e.not_zero(b.reshape(enabled, ())), x.shape)
    return b.select(on, result, x), b.or_(inside, b.not_(on))


@lowers(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_channels(
    cx: Context, x: Node, scale: Node, zero: Node, axis: int, low: int, high: int
) -> tuple[Node, Node]:
    return _fake(cx, x, scale, zero, axis, low, high)


def _quantize(
    cx: Context, x: Node, scale: Value, zero: Value, axis: int | None, low: Value, high: Value
) -> Node:
    wide = DType.F32
    x = b.convert(x, wide)
    # PyTorch divides in the type of the scale (a number has double precision), then rounds.
    inverse = b.divide(e.like(scale, 1), scale) if isinstance(scale, Node) else 1 / scale
    factor, shift = (_for_channels(x, v, axis, wide) for v in (inverse, zero))
    levels = _levels(x, factor, shift)
    least, most = (_for_channels(x, v, None, wide) for v in (low, high))
    return b.convert(b.minimum(b.maximum(levels, least), most), cx.dtype)


def _dequantize(cx: Context, x: Node, scale: Value, zero: Value, axis: int | None) -> Node:
    wide = DType.F32
    factor, shift = (_for_channels(x, v, axis, wide) for v in (scale, zero))
    return b.convert(b.multiply(b.subtract(b.convert(x, wide), shift), factor), cx.dtype)


@lowers_name("quantized_decomposed::quantize_per_tensor")
def quantize(
    cx: Context, x: Node, scale: Value, zero: Value, low: Value, high: Value, _dtype: object
) -> Node:
    return _quantize(cx, x, scale, zero, None, low, high)


@lowers_name("quantized_decomposed::dequantize_per_tensor")
def dequantize(
    cx: Context,
    x: Node,
    scale: Value,
    zero: Value,
    _low: Value,
    _high: Value,
    _dtype: object,
    *,
    out_dtype: object = None,
) -> Node:
    del out_dtype
    return _dequantize(cx, x, scale, zero, None)


@lowers_name("quantized_decomposed::quantize_per_channel")
def quantize_channels(
    cx: Context, x: Node, scale: Node, zero: Node, axis: int, low: int, high: int, _dtype: object
) -> Node:
    return _quantize(cx, x, scale, zero, axis, low, high)


@lowers_name("quantized_decomposed::dequantize_per_channel")
def dequantize_channels(
    cx: Context,
    x: Node,
    scale: Node,
    zero: Node | None,
    axis: int,
    _low: int,
    _high: int,
    _dtype: object,
    *,
    out_dtype: object = None,
) -> Node:
    del out_dtype
    return _dequantize(cx, x, scale, 0 if zero is None else zero, axis)
