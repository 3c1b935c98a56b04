"""The data types of NeuronCores as NumPy sees them: names that host code of kernels imports.

The package of that name which comes with the Neuron SDK is not documented; this one has the names
that public code uses, over ml_dtypes and the types of `nki`. Packed types (``float8_e4m3fn_x4`` and
so on) hold four neighbours of the last dimension in an unsigned integer of 32 or 16 bits, the first
one in the lowest bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from ml_dtypes import (
    bfloat16,
    finfo,
    float4_e2m1fn,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
)

from nki.dtypes import NAMES, canonical, info, name_of, named
from nki.errors import NkiError, NkiTypeError
from nki.isa.cast import write
from nki.isa.mx import unpack

__all__ = [
    "bfloat16",
    "finfo",
    "float4_e2m1fn",
    "float4_e2m1fn_x4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fn_x4",
    "float8_e5m2",
    "float8_e5m2_x4",
    "float8_e8m0fnu",
    "is_float_type",
    "is_int_type",
    "sizeinbytes",
    "static_cast",
]

float8_e4m3fn_x4 = "float8_e4m3fn_x4"
float8_e5m2_x4 = "float8_e5m2_x4"
float4_e2m1fn_x4 = "float4_e2m1fn_x4"

_LANES = 4


def sizeinbytes(dtype: Any) -> int:
    """Return how many bytes an item takes: 4 or 2 for a packed type.

    Raises:
        NkiTypeError: no such type (NKI001).
    """
    return _kind(dtype)[1].itemsize


def is_float_type(dtype: Any) -> bool:
    """Return whether a type, or what a packed type holds, is floating point."""
    return _kind(dtype)[1].kind not in "iub" or _kind(dtype)[0] in _PACKED


def is_int_type(dtype: Any) -> bool:
    """Return whether a type is an integer."""
    name, kind = _kind(dtype)
    return kind.kind in "iu" and name not in _PACKED


_PACKED = frozenset(name for name in NAMES if info(name).is_packed)


def _kind(dtype: Any) -> tuple[str, np.dtype[Any]]:
    """Return NKI's name, "" if NKI has none, and NumPy's type."""
    try:
        name = name_of(dtype) if isinstance(dtype, np.dtype) else canonical(dtype)
    except NkiTypeError:
        try:
            return "", np.dtype(dtype)
        except TypeError:
            pass
        raise
    return name, info(name).numpy


def static_cast(x: Any, dtype: Any) -> npt.NDArray[Any]:
    """Convert an array to a type as the engines do when they write.

    To nearest, ties to even; integers saturate; beyond the largest finite number of a
    floating-point type comes infinity, or NaN in ``float8_e4m3fn``. To a packed type four
    neighbours of the last dimension become one item, and of an array of a packed type each item
    becomes four. Arrays of packed types come from this function, from kernels, and from NumPy as in
    ``np.zeros(8, float8_e4m3fn_x4)``.

    Args:
        x: an array or a number.
        dtype: a type of NKI, NumPy or ml_dtypes.

    Raises:
        NkiTypeError: no such type (NKI001).
        NkiError: a last dimension that is no multiple of four, for a packed type (NKI020).
    """
    array = np.asarray(x)
    name, kind = _kind(dtype)
    source = "" if array.dtype.metadata is None else _kind(array.dtype)[0]
    if source in _PACKED:
        if source == name:
            return array.copy()
        array = unpack(np.atleast_1d(array), source)
    if name in _PACKED:
        return _packed(array, name)
    if name in ("", "bool_"):
        return array.astype(bool if name else kind)
    if array.dtype == kind:
        return array.copy()
    wide = array if array.dtype.kind in "iu" and kind.kind in "iu" else array.astype(np.float32)
    return np.asarray(write(wide, name)).reshape(array.shape)


def _packed(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    row = info(name)
    assert row.lane is not None
    if array.dtype == row.numpy:
        return array.astype(named(name))
    if array.ndim == 0 or array.shape[-1] % _LANES:
        raise NkiError(
            "NKI020",
            f"an array of shape {array.shape} cannot be packed as {name}",
            "its last dimension must be a multiple of 4",
        )
    lanes = array.astype(np.float32).astype(row.lane)
    groups = lanes.reshape(*array.shape[:-1], -1, _LANES)
    if row.lane != np.dtype(ml_dtypes.float4_e2m1fn):
        return np.ascontiguousarray(groups).view(named(name))[..., 0]
    # NumPy keeps each 4-bit number in a byte of its own.
    bits = groups.view(np.uint8).astype(np.uint16) & 0xF
    shifts = np.arange(_LANES, dtype=np.uint16) * np.uint16(4)
    return np.asarray(np.bitwise_or.reduce(bits << shifts, axis=-1)).view(named(name))
