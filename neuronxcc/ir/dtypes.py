"""The data types of the tensor IR, with the names that XLA prints."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class DType(enum.Enum):
    """A scalar type. The value is XLA's name for it, which the printer writes."""

    __hash__ = object.__hash__  # as of Op: members are compared by identity

    PRED = "pred"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F8E4M3 = "f8e4m3"  # IEEE-like, largest finite value 240: Neuron's own before trn3
    F8E4M3FN = "f8e4m3fn"  # OCP, largest finite value 448
    F8E5M2 = "f8e5m2"
    F8E8M0 = "f8e8m0fnu"  # scales of the MX formats
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"

    def __repr__(self) -> str:
        return self.value

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type (ml_dtypes' for those that NumPy lacks)."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        """A real floating point type."""
        return self in FLOATS

    @property
    def is_complex(self) -> bool:
        """complex64 or complex128."""
        return self in COMPLEX

    @property
    def is_signed(self) -> bool:
        """A signed integer."""
        return self in SIGNED

    @property
    def is_unsigned(self) -> bool:
        """An unsigned integer; `pred` is not one."""
        return self in UNSIGNED

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned; `pred` is not one."""
        return self in SIGNED or self in UNSIGNED


SIGNED = frozenset({DType.S8, DType.S16, DType.S32, DType.S64})
UNSIGNED = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})
FLOATS8 = frozenset({DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2, DType.F8E8M0})
FLOATS = FLOATS8 | {DType.F16, DType.BF16, DType.F32, DType.F64}
COMPLEX = frozenset({DType.C64, DType.C128})

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.PRED: np.dtype(np.bool_),
    DType.S8: np.dtype(np.int8),
    DType.S16: np.dtype(np.int16),
    DType.S32: np.dtype(np.int32),
    DType.S64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3),
    DType.F8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.F8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
}
_FROM_NUMPY = {value: key for key, value in _NUMPY.items()}


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The IR's type of a NumPy type; KeyError if it has none."""
    return _FROM_NUMPY[np.dtype(dtype)]
