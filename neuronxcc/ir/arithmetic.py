"""Arithmetic of the tensor IR's types in NumPy.

Arithmetic of 16 and 8-bit floats is done in float32 and rounded. Functions (exp, tanh, ...) and
sums are computed in float64 and rounded, by way of float32: functions so that they are the measure
in ulp of faster ones, sums because that is the value which every order of float32 additions
approximates. Integers wrap in their own type. NaN propagates; whoever calls these silences NumPy's
floating point warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronxcc.ir.dtypes import DType, from_numpy

Array = np.ndarray[Any, np.dtype[Any]]

_NARROW = frozenset(DType) - {DType.F32, DType.F64, DType.C64, DType.C128}


def cast(x: Array, dtype: DType) -> Array:
    """Convert by the rules of Op.CONVERT (see `build.convert`)."""
    source = from_numpy(x.dtype)
    if source is dtype:
        return x
    if dtype is DType.PRED:
        return np.asarray(arithmetic(x) != 0)
    if source.is_complex and not dtype.is_complex:
        return cast(np.asarray(x.real), dtype)
    if dtype.is_integer and source.is_float:
        return _saturate(x, dtype)
    if dtype.is_float and dtype in _NARROW:
        x = x.astype(np.float32)  # as PyTorch: by way of float32
        if dtype is DType.BF16:
            x = np.where(np.isnan(x), np.float32(np.nan), x)  # one NaN, as PyTorch
        if dtype is DType.F8E4M3FN:
            x = np.clip(x, -448, 448)  # saturates, infinities too
        if dtype is DType.F8E8M0:
            x = np.maximum(np.abs(x), np.float32(2.0**-127))  # has no sign and no zero
        return x.astype(dtype.numpy)
    if source.is_float and source in _NARROW:
        x = x.astype(np.float32)
    return x.astype(dtype.numpy)


def _saturate(x: Array, dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    whole = np.trunc(x.astype(np.float64))
    # The greatest 64-bit integers are no float64: compare with the power of two above them.
    above, below = whole >= float(int(info.max) + 1), whole <= float(info.min)
    inside = np.where(above | below | np.isnan(whole), 0.0, whole).astype(dtype.numpy)
    extremes = np.where(above, dtype.numpy.type(info.max), dtype.numpy.type(info.min))
    return np.where(above | below, extremes, inside)


def arithmetic(x: Array) -> Array:
    """In the type in which it is computed with: narrow floats become float32."""
    dtype = from_numpy(x.dtype)
    return x.astype(np.float32) if dtype.is_float and dtype in _NARROW else x


def precise(x: Array) -> Array:
    """In the widest type: floats become float64, complex numbers complex128."""
    dtype = from_numpy(x.dtype)
    if dtype.is_complex:
        return x.astype(np.complex128)
    return x.astype(np.float64) if dtype.is_float else x


def maximum(a: Array, b: Array) -> Array:
    """NaN wins; 0.0 is greater than -0.0."""
    if a.dtype.kind != "f":
        return np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def minimum(a: Array, b: Array) -> Array:
    """NaN wins; -0.0 is less than 0.0."""
    if a.dtype.kind != "f":
        return np.minimum(a, b)
    return np.where((a == 0) & (b == 0), -(-a - b), np.minimum(a, b))


COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": minimum,
    "max": maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logaddexp": np.logaddexp,
}


def neutral(kind: str, dtype: DType) -> Any:
    """The value that changes nothing when combined, as a NumPy scalar of the type."""
    of = dtype.numpy.type
    if kind in ("min", "max"):
        low, high = _extremes(dtype)
        return of(high if kind == "min" else low)
    zero = of(0)
    every = {"add": zero, "or": zero, "xor": zero, "mul": of(1), "logaddexp": -np.inf}
    return every[kind] if kind in every else np.invert(zero)  # and: all bits set


def _extremes(dtype: DType) -> tuple[Any, Any]:
    if dtype is DType.PRED:
        return 0, 1
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return info.min, info.max
    if dtype is DType.F8E4M3FN:  # has no infinity
        return -448.0, 448.0
    return -np.inf, np.inf


def precise_sum(x: Array, kind: str) -> Array:
    """In the type in which values are combined: sums and products in the widest one."""
    return precise(x) if kind in ("add", "mul", "logaddexp") else arithmetic(x)
