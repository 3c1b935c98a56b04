"""Questions that rules ask of nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import Array, arithmetic
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal, Node, TensorType
from neuronxcc.ir.op import Op


def again(node: Node, *srcs: Node) -> Node:
    """The same operation on other operands, whose types may differ."""
    return build.make(node.op, srcs, **node.attrs)


def scalar_of(node: Node) -> Node | None:
    """The scalar that fills a tensor: a broadcast's operand, or the node itself."""
    if node.op is Op.BROADCAST_IN_DIM and not node.srcs[0].shape:
        return node.srcs[0]
    return None if node.shape else node


def repeat(scalar: Node, shape: Sequence[int]) -> Node:
    """A tensor filled with a scalar: always a broadcast, for extents of 1 too."""
    return build.broadcast_in_dim(scalar, shape, ()) if tuple(shape) else scalar


def splat(node: Node) -> Array | None:
    """The value, without dimensions, of a tensor filled with one constant."""
    scalar = scalar_of(node)
    if scalar is None or scalar.op is not Op.CONSTANT:
        return None
    literal: Literal = scalar["literal"]
    return literal.array


def fill(array: Any, type_: TensorType) -> Node:
    """A tensor of that type filled with a value of its element type."""
    scalar = build.constant(np.asarray(array, type_.dtype.numpy).reshape(()))
    return repeat(scalar, type_.shape)


def spread(x: Node, shape: Sequence[int], dims: Sequence[int]) -> Node:
    """Broadcast where the dimensions need not be in order: transposed before they are repeated."""
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return build.broadcast_in_dim(build.transpose(x, order), shape, sorted(dims))


def number(node: Node) -> float | int | None:
    """The real number that fills a tensor, as Python's; None if there is none or it is NaN."""
    array = splat(node)
    if array is None or node.dtype.is_complex:
        return None
    value: float | int = arithmetic(array).item()
    return None if math.isnan(value) else value


def is_number(node: Node, value: float) -> bool:
    """Return whether a tensor is filled with that number; 0.0 is not -0.0."""
    found = number(node)
    if found is None or found != value:
        return False
    # Integers and pred have one zero.
    return isinstance(found, int) or math.copysign(1, found) == math.copysign(1, value)


def power_of_two(value: float) -> bool:
    """Return whether a float is a power of two, of either sign, not zero and not infinite."""
    return math.isfinite(value) and math.frexp(abs(value))[0] == 0.5


def whole(dtype: DType) -> bool:
    """Integers and pred: nothing is rounded and there is no NaN."""
    return dtype.is_integer or dtype is DType.PRED


# Exponent of the least denormal, exponent of the greatest value, bits of the significand.
_FORMATS: dict[DType, tuple[int, int, int]] = {
    DType.F8E4M3: (-9, 7, 4),
    DType.F8E4M3FN: (-9, 8, 4),
    DType.F8E5M2: (-16, 15, 3),
    DType.F16: (-24, 15, 11),
    DType.BF16: (-133, 127, 8),
    DType.F32: (-149, 127, 24),
    DType.F64: (-1074, 1023, 53),
}


def lossless(source: DType, target: DType) -> bool:
    """Return whether every value of `source` is one of `target`, infinities and NaN included."""
    if source is target:
        return True
    if DType.F8E8M0 in (source, target) or source.is_complex or target.is_complex:
        return False
    if source.is_float:
        # f8e4m3fn has no infinity.
        return target.is_float and target is not DType.F8E4M3FN and _within(source, target)
    bits = 1 if source is DType.PRED else source.itemsize * 8 - source.is_signed
    if target.is_float:
        return bits <= min(_FORMATS[target][1:])
    room = target.itemsize * 8 - target.is_signed
    fits = bits <= room and (target.is_signed or not source.is_signed)
    return target.is_integer and fits


def _within(source: DType, target: DType) -> bool:
    (least, greatest, bits), (low, high, wide) = _FORMATS[source], _FORMATS[target]
    return low <= least and greatest <= high and bits <= wide
