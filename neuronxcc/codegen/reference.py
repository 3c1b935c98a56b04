"""The meaning of a loop kernel, in NumPy: every expression is an array over the whole space.

Elementwise operators mean what they mean in the tensor IR (`ir/operators`). Sums and products of
floats are taken in float64 and rounded by way of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, Store, scalars
from neuronxcc.ir.arithmetic import Array, arithmetic, cast, maximum, minimum, precise
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import meaning


def run_kernel(kernel: Kernel, buffers: Sequence[Array]) -> None:
    """Runs a kernel.

    Args:
        kernel: Any valid kernel; of an epilogue too, whose tile is then a whole matrix.
        buffers: For each slot a one-dimensional array of its dtype, written in place. Element 0 is
            where the slot begins; an access must stay within the array.

    Raises:
        TypeError: A buffer is not of its slot's type.
    """
    for slot, buffer in zip(kernel.slots, buffers, strict=True):
        if buffer.dtype != slot.dtype.numpy or buffer.ndim != 1:
            raise TypeError(f"a buffer of {buffer.dtype} for a slot of {slot.dtype.value}")
    with np.errstate(all="ignore"):
        points = _Points(kernel, buffers)
        writes = [(store, *points.write(store)) for store in kernel.stores]
        for store, places, values in writes:
            _write(store, buffers[store.access.slot], places, values)


class _Points:
    """All points of the space at once."""

    def __init__(self, kernel: Kernel, buffers: Sequence[Array]) -> None:
        self.shape = tuple(dim.extent for dim in kernel.dims)
        self.reduced = tuple(d for d, dim in enumerate(kernel.dims) if dim.kind is Kind.REDUCE)
        self.buffers = buffers
        self.values: dict[Scalar, Array] = {}
        for scalar in scalars(kernel):
            value = self._compute(scalar)
            self.values[scalar] = np.broadcast_to(value, self.shape)

    def _index(self, dim: int) -> Array:
        shape = [1] * len(self.shape)
        shape[dim] = self.shape[dim]
        return np.arange(self.shape[dim]).reshape(shape)

    def places(self, access: Access) -> Array:
        """The position in its buffer for every point."""
        total: Any = np.full(self.shape, access.offset, np.int64)
        for dim, stride in enumerate(access.strides):
            total = total + self._index(dim) * stride
        for index, stride in access.indices:
            total = total + self.values[index].astype(np.int64) * stride
        return np.asarray(total)

    def _compute(self, scalar: Scalar) -> Array:  # noqa: PLR0911 - one for each kind
        numpy = scalar.dtype.numpy
        if scalar.what == "const":
            return np.asarray(scalar.value).astype(numpy)
        if scalar.what == "index":
            return self._index(scalar.dim).astype(numpy)
        if scalar.what == "load":
            return self._load(scalar)
        operands = [self.values[src] for src in scalar.srcs]
        if scalar.what == "check":
            return self._check(scalar, operands)
        if scalar.what == "reduce":
            return self._reduce(scalar, operands[0])
        if scalar.what == "arg":
            of = np.argmax if scalar.op is Op.MAXIMUM else np.argmin
            (dim,) = self.reduced
            return np.asarray(of(arithmetic(operands[0]), axis=dim, keepdims=True), numpy)
        return apply(scalar, operands)

    def _check(self, scalar: Scalar, operands: Sequence[Array]) -> Array:
        value, low, high = operands
        assert scalar.access is not None
        if ((value < low) | (value > high)).any():
            self.buffers[scalar.access.slot][scalar.access.offset] = 1
        return np.asarray(value)

    def _load(self, scalar: Scalar) -> Array:
        access = scalar.access
        assert access is not None
        buffer, places = self.buffers[access.slot], self.places(access)
        if not scalar.srcs:
            return np.asarray(buffer[places])
        mask, other = (self.values[src] for src in scalar.srcs)
        return np.where(mask, buffer[np.where(mask, places, 0)], other).astype(buffer.dtype)

    def _reduce(self, scalar: Scalar, x: Array) -> Array:
        axes = self.reduced
        if scalar.op in (Op.ADD, Op.MULTIPLY) and x.dtype != np.bool_:
            wide = precise(x) if x.dtype.kind not in "iu" else cast(x, scalar.dtype)
            total = np.sum if scalar.op is Op.ADD else np.prod
            return cast(total(wide, axis=axes, keepdims=True, dtype=wide.dtype), scalar.dtype)
        assert scalar.op is not None
        x = arithmetic(cast(x, scalar.dtype))
        kept = [d for d in range(x.ndim) if d not in axes]
        rows = x.transpose([*axes, *kept]).reshape(-1, *(self.shape[d] for d in kept))
        result = rows[0]
        for row in rows[1:]:
            result = _COMBINE[scalar.op](result, row)
        shape = [1 if d in axes else extent for d, extent in enumerate(self.shape)]
        return cast(np.asarray(result), scalar.dtype).reshape(shape)

    def write(self, store: Store) -> tuple[Array, Array]:
        """Positions and values of a store, in the order of the space."""
        places, values = self.places(store.access), self.values[store.value]
        mask = np.ones(self.shape, bool) if store.mask is None else self.values[store.mask]
        if self._steady(store):
            at = tuple(0 if d in self.reduced else slice(None) for d in range(len(self.shape)))
            places, values, mask = places[at], values[at], mask[at]
        return places[mask], values[mask]

    def _steady(self, store: Store) -> bool:
        """Return whether the store is done once per point of the PARALLEL dimensions."""
        return all(store.access.strides[d] == 0 for d in self.reduced) and store.combine is None


_COMBINE: dict[Op, Callable[[Array, Array], Array]] = {
    Op.ADD: np.add,
    Op.MULTIPLY: np.multiply,
    Op.MAXIMUM: maximum,
    Op.MINIMUM: minimum,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
}


def apply(scalar: Scalar, operands: Sequence[Array]) -> Array:
    """An elementwise operator on arrays, as the tensor IR defines it."""
    assert scalar.op is not None
    attrs: dict[str, Any] = {"dtype": scalar.dtype, "direction": scalar.direction}
    if scalar.op is Op.REDUCE_PRECISION:
        bits = [int(src.value.real) for src in scalar.srcs[1:] if src.value is not None]
        attrs |= {"exponent_bits": bits[0], "mantissa_bits": bits[1]}
        operands = operands[:1]
    # On at least one dimension: some of the functions index their operands.
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    flat = [np.broadcast_to(x, shape).reshape(math.prod(shape)) for x in operands]
    node = Node.make(scalar.op, TensorType(scalar.dtype, (math.prod(shape),)), (), attrs)
    return np.asarray(meaning(scalar.op)(node, *flat)).reshape(shape)


def _write(store: Store, buffer: Array, places: Array, values: Array) -> None:
    if store.combine is None:
        buffer[places] = values
        return
    for place, value in zip(places.reshape(-1), values.reshape(-1), strict=True):
        old = arithmetic(buffer[place : place + 1])
        new = _COMBINE[store.combine](old, arithmetic(np.asarray(value).reshape(1)))
        buffer[place : place + 1] = cast(new, store.value.dtype)
