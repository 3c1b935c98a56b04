"""The meaning of PyTorch's arguments, written with the builders of the tensor IR.

The helpers of every lowering: constants with PyTorch's conversions, broadcasting, promotion,
dimensions that may be negative, and arithmetic in the type in which PyTorch does it.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype, promote_types, result_dtype

Value = Node | Scalar


def number(value: Scalar, dtype: DType, shape: Sequence[int] = ()) -> Node:
    """A constant, converted as PyTorch converts numbers: integers wrap, fractions are cut."""
    if dtype is DType.PRED:
        value = bool(value)
    elif dtype.is_integer:
        value = _wrapped(value, dtype)
    elif isinstance(value, complex) and not dtype.is_complex:
        value = value.real
    return build.constant(value, dtype, shape)


def _wrapped(value: Scalar, dtype: DType) -> int:
    info = np.iinfo(dtype.numpy)
    if isinstance(value, complex):
        value = value.real
    if isinstance(value, float) and not np.isfinite(value):
        value = 0 if np.isnan(value) else int(info.max if value > 0 else info.min)
    span = int(info.max) - int(info.min) + 1
    return (int(value) - int(info.min)) % span + int(info.min)


def value(x: Value, dtype: DType) -> Node:
    """A tensor converted to `dtype`, or a number as a constant of it (rank 0)."""
    return build.convert(x, dtype) if isinstance(x, Node) else number(x, dtype)


def shape_of(*values: Value) -> tuple[int, ...]:
    """The common shape of tensors and numbers."""
    shapes = [v.shape for v in values if isinstance(v, Node)]
    return tuple(np.broadcast_shapes(*shapes)) if len(set(shapes)) > 1 else (*shapes, ())[0]


def together(dtype: DType, *values: Value) -> list[Node]:
    """All values in one type and broadcast to one shape."""
    shape = shape_of(*values)
    return [build.broadcast_to(value(v, dtype), shape) for v in values]


def rounded_together(dtype: DType, *values: Value) -> list[Node]:
    """Like `together` in the type that `dtype` computes in, after rounding each to `dtype`.

    For operators whose result depends on the rounding of a number operand, such as comparisons.
    """
    shape = shape_of(*values)
    wide = compute_dtype(dtype)
    return [build.broadcast_to(build.convert(value(v, dtype), wide), shape) for v in values]


def promoted(*values: Value) -> list[Node]:
    """All values in their common type (rounded to it), widened to what it computes in."""
    return rounded_together(result_dtype(*values), *values)


class NoDimensionError(IndexError):
    """A dimension that a tensor does not have, in PyTorch's words."""

    def __init__(self, index: int, rank: int) -> None:
        limits = f"[{-max(rank, 1)}, {max(rank, 1) - 1}]"
        super().__init__(
            f"Dimension out of range (expected to be in range of {limits}, but got {index})"
        )


def dim(index: int, rank: int) -> int:
    """A dimension counted from 0; a tensor without dimensions takes 0 and -1.

    Raises:
        NoDimensionError: There is no such dimension: PyTorch's fake kernels don't always look.
    """
    if not -max(rank, 1) <= index < max(rank, 1):
        raise NoDimensionError(index, rank)
    return index % rank if rank else 0


def dims(index: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions counted from 0, sorted; None and () mean all of them."""
    if index is None:
        return tuple(range(rank))
    listed = (index,) if isinstance(index, int) else tuple(index)
    known = {dim(i, rank) for i in listed}
    if not listed or not rank:
        return tuple(range(rank))
    return tuple(sorted(known))


def is_zero(x: Value) -> bool:
    """Return whether it is the number 0."""
    return not isinstance(x, Node) and x == 0


def is_one(x: Value) -> bool:
    """Return whether it is the number 1."""
    return not isinstance(x, Node) and x == 1


def scaled(x: Node, factor: Scalar) -> Node:
    """`factor * x`, nothing for a factor of 1; of truth values it is their conjunction."""
    if is_one(factor):
        return x
    product = build.and_ if x.dtype is DType.PRED else build.multiply
    return product(x, number(factor, x.dtype, x.shape))


def times(x: Node, factor: Scalar) -> Node:
    """`factor * x` as the kernels of sums do it, which multiply complex numbers by 1 + 0i, too.

    That changes some: an infinite part makes the other one NaN, and -0.0 may become 0.0.
    """
    if not x.dtype.is_complex:
        return scaled(x, factor)
    return build.multiply(x, number(factor, x.dtype, x.shape))


def like(x: Node, constant: Scalar) -> Node:
    """A tensor of the type of `x` filled with a number."""
    return number(constant, x.dtype, x.shape)


def cast(x: Node, dtype: DType) -> Node:
    """The conversion that a program asks for.

    Floats become integers as in eager mode, which converts to 32 or 64 bits by the processor's own
    instruction and keeps the low bits of that in narrower types. On x86-64 NaN and what the wide
    one can't hold become its smallest number; on aarch64 it saturates and NaN becomes 0, as in
    XLA's conversion, `convert`. Of a complex number it is the real part that becomes one.
    """
    if x.dtype.is_complex and dtype.is_integer:
        x = build.real(x)
    if not x.dtype.is_float or not dtype.is_integer:
        return build.convert(x, dtype)
    if _SATURATES:
        if x.dtype is DType.F16 and dtype is DType.U16:
            return build.convert(x, dtype)  # by an instruction without a sign
        # By vectors, that is: of float64 PyTorch converts what is left over through 32 bits.
        through_64 = dtype not in _FROM_32_BITS - {DType.U8} or x.dtype is DType.F64
        return build.convert(build.convert(x, DType.S64 if through_64 else DType.S32), dtype)
    through_64 = dtype not in _FROM_32_BITS or (x.dtype is DType.F64 and dtype is DType.U8)
    wide = DType.S64 if through_64 else DType.S32
    bits = wide.itemsize * 8
    low = build.select(
        build.less(x, like(x, 2.0 ** (bits - 1))),
        build.convert(x, wide),
        number(-(2 ** (bits - 1)), wide, x.shape),
    )
    return build.convert(low, dtype)


_FROM_32_BITS = frozenset({DType.S8, DType.U8, DType.S16, DType.U16, DType.S32})
_SATURATES = platform.machine() != "x86_64"


def not_zero(x: Node) -> Node:
    """Truth of every element: NaN is true."""
    return x if x.dtype is DType.PRED else build.not_equal(x, like(x, 0))


def positions(shape: Sequence[int], axis: int, dtype: DType = DType.S64) -> Node:
    """The index along `axis` of every element of the shape."""
    return build.iota(dtype, shape, axis)


def keep_dims(x: Node, shape: Sequence[int], over: Sequence[int]) -> Node:
    """Put back extents of 1 for the reduced dimensions `over` of `shape`."""
    return build.reshape(x, [1 if d in over else n for d, n in enumerate(shape)])


def back(x: Node, shape: Sequence[int], over: Sequence[int]) -> Node:
    """Repeat a reduced tensor along the reduced dimensions: the shape it had before."""
    rest = [d for d in range(len(shape)) if d not in over]
    return build.broadcast_in_dim(x, tuple(shape), rest)


def sum_to(x: Node, shape: Sequence[int]) -> Node:
    """Add up what broadcasting repeated: the result has `shape`."""
    extra = x.type.rank - len(shape)
    over = [d for d in range(x.type.rank) if d < extra or shape[d - extra] != x.shape[d]]
    return build.reshape(build.reduce(x, "add", over), shape) if over else build.reshape(x, shape)


def wrap_index(index: Node, extent: int) -> Node:
    """Indices of which negative ones count from the end, as positions."""
    index = index if index.dtype in (DType.S64, DType.S32) else build.convert(index, DType.S64)
    if _never_negative(index):
        return index
    return build.select(
        build.less(index, like(index, 0)), build.add(index, like(index, extent)), index
    )


def _never_negative(index: Node) -> bool:
    """Return whether an index surely counts from the start; a cheap look, not a proof."""
    while index.op in {Op.RESHAPE, Op.BROADCAST_IN_DIM, Op.TRANSPOSE, Op.SLICE, Op.CONVERT}:
        index = index.srcs[0]
    if index.op is Op.CONSTANT:
        array: Any = index["literal"].array
        return bool((array >= 0).all())
    return index.op is Op.IOTA


def flat_index(parts: Sequence[Node]) -> tuple[Node, int]:
    """Index tensors of one shape joined along a new last dimension, and where that is.

    One tensor needs no such dimension: its place is then the rank, which gather and scatter take.
    """
    rank = parts[0].type.rank
    if len(parts) == 1:
        return parts[0], rank
    wide = DType.S64 if any(p.dtype is DType.S64 for p in parts) else parts[0].dtype
    return build.stack([build.convert(p, wide) for p in parts], rank), rank


__all__ = [
    "Value",
    "back",
    "compute_dtype",
    "dim",
    "dims",
    "flat_index",
    "is_one",
    "is_zero",
    "keep_dims",
    "like",
    "not_zero",
    "number",
    "positions",
    "promote_types",
    "promoted",
    "rounded_together",
    "scaled",
    "shape_of",
    "sum_to",
    "times",
    "together",
    "value",
    "wrap_index",
]
