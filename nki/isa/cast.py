"""The two places where values change type: on the way into an engine and on the way out.

An engine computes in float32 (or in 32-bit integers) and casts when it writes:

- to floating point: to nearest, ties to even; beyond the largest finite value to infinity, which
  is documented for the fill value of `range_select`, or to NaN in the types without infinity
  (``float8_e4m3fn``, whose largest value is 448; ``float8_e4m3`` ends at 240);
- to integers: to nearest, ties to even, and saturated (documented since NKI 0.6); NaN becomes 0,
  which is our choice;
- to ``bool_``: 1 where the value is not zero.

Stochastic rounding, which trn3 can be switched to, is not modelled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import DTypeInfo, info

__all__ = ["Array", "bit_pattern", "to_float32", "to_integer", "write"]

Array = npt.NDArray[Any]

_TF32_DROPPED = 13  # mantissa bits that float32 has and tfloat32 has not


def _round_tf32(value: Array) -> Array:
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32).astype(np.uint64)
    odd = (bits >> _TF32_DROPPED) & 1
    rounded = (bits + ((1 << (_TF32_DROPPED - 1)) - 1) + odd) & ~np.uint64((1 << _TF32_DROPPED) - 1)
    kept = np.where(np.isfinite(value), rounded, bits).astype(np.uint32)
    return kept.view(np.float32).reshape(value.shape)


def to_float32(value: Array, dtype: str) -> Array:
    """Return an operand as an engine reads it for arithmetic: in float32.

    Args:
        value: the stored items.
        dtype: NKI's name of their type; packed types have no value of their own.
    """
    kind = info(dtype)
    assert not kind.is_packed, dtype
    wide: Array = np.asarray(value).astype(np.float32)
    return _round_tf32(wide) if kind.name == "tfloat32" else wide


def to_integer(value: Array) -> Array:
    """Return integers as int64, where sums and products of 32 bits are exact modulo 2**32."""
    return np.asarray(value).astype(np.int64)


def truncated(value: Array) -> Array:
    """Return numbers without their fractions as int64, the nearest that there is; 0 for NaN."""
    whole = np.nan_to_num(np.asarray(value).astype(np.float64), nan=0.0)
    below = np.nextafter(2.0**63, 0.0)
    inside = np.clip(whole, -(2.0**63), below).astype(np.int64)
    return np.where(whole > below, np.iinfo(np.int64).max, inside)


def bit_pattern(value: Array) -> Array:
    """Return integers as unsigned ones of the same width: what bitwise operators work on."""
    array = np.ascontiguousarray(value)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _integers(value: Array, kind: DTypeInfo) -> Array:
    limits = np.iinfo(kind.numpy)
    if value.dtype.kind in "iub":
        return np.clip(value.astype(np.int64), limits.min, limits.max).astype(kind.numpy)
    # float64, because float32 has no 2**31 - 1 to clip to.
    nearest = np.rint(value.astype(np.float64))
    nearest = np.where(np.isnan(nearest), 0.0, nearest)
    return np.clip(nearest, limits.min, limits.max).astype(kind.numpy)


def write(value: Array, dtype: str) -> Array:
    """Cast what an engine computed to the type of the tensor that it writes.

    Args:
        value: float32, integers, or items that already have the stored type: these are the copies
            that keep every bit, and the only thing that a packed type takes. A copy of tfloat32,
            which is stored as float32, comes as its uint32 :func:`bit_pattern`.
        dtype: NKI's name of the destination's type.

    Returns:
        An array of the same shape of the stored NumPy type.
    """
    kind = info(dtype)
    if kind.name == "tfloat32":
        if value.dtype == np.uint32:
            return value.view(np.float32)
        return _round_tf32(value.astype(np.float32))
    if value.dtype == kind.numpy:
        return value
    if kind.name == "bool_":
        return np.asarray(value != 0).astype(kind.numpy)
    assert not kind.is_packed, f"{value.dtype} cannot be cast to {dtype}"
    with np.errstate(all="ignore"):
        if kind.is_int:
            return _integers(value, kind)
        result: Array = value.astype(np.float32).astype(kind.numpy)
        return result
