"""Types of the tensor IR as the device holds them in HBM and in tiles.

Integers of 64 bits are pairs of 32-bit words in HBM, the low one first; engines compute with the
low word. A truth value is a byte of 0 or 1. Floats of 64 bits and complex numbers have no form.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType
from nki.dtypes import info

__all__ = ["HELD", "INTEGERS32", "has_form", "held", "returned", "stored_shape", "words"]

Array = npt.NDArray[Any]

#: The type of an element in a tile.
HELD: Final[Mapping[DType, str]] = MappingProxyType(
    {
        DType.PRED: "uint8",
        DType.S8: "int8",
        DType.S16: "int16",
        DType.S32: "int32",
        DType.S64: "int32",
        DType.U8: "uint8",
        DType.U16: "uint16",
        DType.U32: "uint32",
        DType.U64: "uint32",
        DType.F8E4M3: "float8_e4m3",
        DType.F8E4M3FN: "float8_e4m3fn",
        DType.F8E5M2: "float8_e5m2",
        DType.F16: "float16",
        DType.BF16: "bfloat16",
        DType.F32: "float32",
    }
)
_PAIRS: Final = frozenset({DType.S64, DType.U64})
#: Integers that GpSimd computes exactly, in 32 bits.
INTEGERS32: Final = frozenset({DType.S32, DType.U32, DType.S64, DType.U64})


def has_form(dtype: DType) -> bool:
    """Return whether the device has a form of a type."""
    return dtype in HELD


def words(dtype: DType) -> int:
    """Return how many items of its tile's type an element takes in HBM."""
    return 2 if dtype in _PAIRS else 1


def stored_shape(type_: TensorType) -> tuple[int, ...]:
    """Return the shape of a tensor in HBM, in items of its tile's type: it is flat."""
    return (max(1, type_.size) * words(type_.dtype),)


def held(array: Array, dtype: DType) -> Array:
    """Return a host array as the device holds it: flat, writable, of NKI's NumPy type."""
    kind = info(HELD[dtype]).numpy
    flat = np.array(array, order="C").reshape(-1).view(kind)
    return flat if flat.size else np.zeros(1, kind)


def returned(flat: Array, type_: TensorType) -> Array:
    """Return what the device holds as a host array."""
    size = type_.size * words(type_.dtype)
    kind = type_.dtype.numpy
    if type_.dtype is DType.PRED:
        truths: Array = (flat[:size] != 0).reshape(type_.shape)
        return truths
    found: Array = np.ascontiguousarray(flat[:size]).view(kind).reshape(type_.shape)
    return found
