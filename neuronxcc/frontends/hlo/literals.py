"""Constants of a module: Literal messages to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType

#: Where a literal keeps its elements: a field of numbers, or one of raw little-endian bytes.
_NUMBERS: dict[DType, str] = {
    DType.PRED: "preds", DType.S32: "s32s", DType.S64: "s64s", DType.U32: "u32s",
    DType.U64: "u64s", DType.F32: "f32s", DType.F64: "f64s", DType.C64: "c64s",
    DType.C128: "c128s",
}  # fmt: skip
_BYTES: dict[DType, str] = {
    DType.S8: "s8s", DType.U8: "u8s", DType.S16: "s16s", DType.U16: "u16s", DType.F16: "f16s",
    DType.BF16: "bf16s", DType.F8E5M2: "f8e5m2s", DType.F8E4M3FN: "f8e4m3fns",
    DType.F8E4M3: "f8e4m3s", DType.F8E8M0: "f8e8m0fnus",
}  # fmt: skip
_PARTS: dict[DType, np.dtype[Any]] = {
    DType.C64: np.dtype(np.float32),
    DType.C128: np.dtype(np.float64),
}


def array_of(literal: Any, type_: TensorType) -> np.ndarray:
    """Return the array that a Literal message holds; it is `type_`, in C order.

    Raises:
        RefusedError: It holds another number of elements, or its layout is no permutation.
    """
    if type_.dtype in _NUMBERS:
        part: np.dtype[Any] = _PARTS.get(type_.dtype, type_.dtype.numpy)
        parts = np.asarray(getattr(literal, _NUMBERS[type_.dtype]), part)
        if parts.nbytes % type_.dtype.itemsize:
            raise invalid(f"{parts.size} numbers are no whole number of {type_.dtype.value}")
        flat = parts.view(type_.dtype.numpy)
    else:
        content: bytes = getattr(literal, _BYTES[type_.dtype])
        if len(content) % type_.dtype.itemsize:
            raise invalid(f"{len(content)} bytes are no whole number of {type_.dtype.value}")
        flat = np.frombuffer(content, type_.dtype.numpy)
    if flat.size != type_.size:
        raise invalid(f"a literal of type {type_} holds {flat.size} elements")
    order = _minor_to_major(literal.shape, type_.rank)
    # The elements lie in the order of the layout: most major dimension first.
    major_first = order[::-1]
    stored = flat.reshape([type_.shape[d] for d in major_first])
    order_in_memory = np.argsort(major_first) if type_.rank else ()
    return np.asarray(stored.transpose(order_in_memory), order="C")


def literal_of(array: np.ndarray, type_: TensorType, shape: Any) -> Any:
    """The Literal message of an array; what `array_of` reads.

    Args:
        array: Of `type_`.
        type_: Element type and shape.
        shape: The Shape message of the type, in C order.
    """
    literal = message("Literal")(shape=shape)
    flat = np.ascontiguousarray(array).reshape(-1)
    if type_.dtype in _NUMBERS:
        parts = flat.view(_PARTS.get(type_.dtype, flat.dtype))
        getattr(literal, _NUMBERS[type_.dtype]).extend(parts.tolist())
    else:
        setattr(literal, _BYTES[type_.dtype], flat.tobytes())
    return literal


def _minor_to_major(shape: Any, rank: int) -> list[int]:
    order = list(shape.layout.minor_to_major) or list(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        raise invalid(f"layout {order} of a literal of rank {rank}")
    if shape.layout.tiles:
        raise invalid("a literal with a tiled layout")
    return order
