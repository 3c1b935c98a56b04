"""The data types of the first generation: NumPy's own where it has them, and how they combine."""

from typing import Any, Final

import ml_dtypes
import numpy as np

from nki.dtypes import canonical, info

__all__ = [
    "PLAIN",
    "TFLOAT32",
    "dtype_name",
    "numpy_dtype",
    "promote",
    "scalar_dtype",
]

# The documented stand-in: NumPy has no type of 19 significant bits.
TFLOAT32: Final = np.dtype("V4")

PLAIN: Final[dict[str, Any]] = {
    "bool_": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "float16": np.float16,
    "float32": np.float32,
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": TFLOAT32,
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_DTYPES: Final = {name: np.dtype(kind) for name, kind in PLAIN.items()}


def dtype_name(dtype: Any) -> str:
    """Return NKI's name of a type in any spelling, also Python's ``bool``, ``int`` and ``float``.

    Raises:
        NkiTypeError: NKI has no such type (NKI001).
    """
    if isinstance(dtype, np.dtype) and dtype == TFLOAT32:
        return "tfloat32"
    if dtype is int:
        return "int32"
    return canonical(dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return what kernels of the first generation see as the ``dtype`` of a tensor."""
    found = _DTYPES.get(name)
    return info(name).numpy if found is None else found


def scalar_dtype(value: Any) -> str:
    """Return the type of a number beside a tile.

    NumPy's scalars have their own; Python's have the widest of their kind, as documented.
    """
    if isinstance(value, (bool, np.bool_)):
        return "uint8"
    if isinstance(value, np.generic):
        wide = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
        return dtype_name(wide.get(value.dtype.name, value.dtype))
    return "int32" if isinstance(value, int) else "float32"


_WIDENED: Final = {
    frozenset({"float16", "bfloat16"}): "float32",
    frozenset({"float8_e4m3", "float8_e5m2"}): "bfloat16",
    frozenset({"float8_e4m3fn", "float8_e5m2"}): "bfloat16",
    frozenset({"float8_e4m3", "float8_e4m3fn"}): "bfloat16",
}
_FLOATS: Final = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "tfloat32", "float32")  # fmt: skip  # noqa: E501


def promote(a: str, b: str) -> str:
    """Return the type of a result of operands of two types, by the documented rules."""
    if a == b:
        return a
    floats = [kind for kind in (a, b) if info(kind).is_float]
    if len(floats) == 1:
        return floats[0]
    if floats:
        widened = _WIDENED.get(frozenset({a, b}))
        return widened if widened is not None else max(a, b, key=_FLOATS.index)
    plain = ["uint8" if kind == "bool_" else kind for kind in (a, b)]
    common = np.promote_types(*plain)
    return "float32" if common.itemsize > 4 else str(common)
