"""The data types of the first generation: NumPy's own where it has them, and how they combine."""

from typing import Any, Final

import numpy as np

from nki.dtypes import NAMES, NARROWED, canonical, info

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

# Without packed types and scales; NumPy's own types are the classes that programs compare with.
PLAIN: Final[dict[str, Any]] = {
    name: kind.type if kind.isbuiltin == 1 else kind
    for name in NAMES
    for kind in (info(name).numpy,)
    if not info(name).is_packed and name != "float8_e8m0fnu"
} | {"bool_": np.bool_, "tfloat32": TFLOAT32}
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
        return dtype_name(NARROWED.get(value.dtype.name, value.dtype))
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
