"""The 18 data types of NKI.

A data type is a plain string, so ``nl.float32 == "float32"``; :func:`info` tells what is known of
it and :func:`canonical` takes every accepted spelling to it.

>>> canonical("float8e4"), canonical(np.int32), info("float4_e2m1fn_x4").itemsize
('float8_e4m3', 'int32', 2)
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from neuronxcc.ir.dtypes import DType as LoopType
from nki.errors import NkiTypeError

__all__ = ["NAMES", "NARROWED", "DTypeInfo", "canonical", "info", "name_of", "named"]


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """A data type.

    Attributes:
        name: NKI's name.
        numpy: the NumPy type of one stored item; for packed types an unsigned integer of its size.
        itemsize: bytes of one item.
        is_float: whether arithmetic on it is floating point; true of packed types.
        is_int: a signed or unsigned integer; ``bool_`` is none.
        lanes: elements packed in one item: 4 for the ``_x4`` types, else 1.
        lane: the NumPy type of one packed element, which for 4-bit elements takes a byte of its own
            when unpacked; ``numpy`` where nothing is packed.
        loop: the type that loop kernels compute with, None where they have no equal one.
        aliases: other accepted spellings.
    """

    name: str
    numpy: np.dtype[Any]
    itemsize: int
    is_float: bool
    is_int: bool
    lanes: int
    lane: np.dtype[Any]
    loop: LoopType | None
    aliases: tuple[str, ...]

    @property
    def is_packed(self) -> bool:
        """Return whether several elements make one item."""
        return self.lanes > 1


def _type(
    name: str, loop: LoopType | None, *aliases: str, stored: LoopType | None = None
) -> DTypeInfo:
    kind = stored or loop
    assert kind is not None, name
    is_int = loop is not None and loop.is_integer
    is_float = not is_int and loop is not LoopType.PRED
    numpy = kind.numpy
    return DTypeInfo(name, numpy, numpy.itemsize, is_float, is_int, 1, numpy, loop, aliases)


def _packed(name: str, item: LoopType, lane: Any) -> DTypeInfo:
    kind = item.numpy
    return DTypeInfo(
        name, kind, kind.itemsize, is_float=True, is_int=False, lanes=4, lane=np.dtype(lane),
        loop=None, aliases=(),
    )  # fmt: skip


# bool_ is stored as a byte whose value need not be 0 or 1, which numpy.bool_ does not allow.
# tfloat32 is stored as 32 bits of which the engines that multiply use 19.
_TYPES = (
    _type("bool_", LoopType.PRED, "bool", stored=LoopType.U8),
    _type("int8", LoopType.S8),
    _type("int16", LoopType.S16),
    _type("int32", LoopType.S32),
    _type("uint8", LoopType.U8),
    _type("uint16", LoopType.U16),
    _type("uint32", LoopType.U32),
    _type("float16", LoopType.F16, "fp16", "half"),
    _type("float32", LoopType.F32, "fp32", "float"),
    _type("bfloat16", LoopType.BF16, "bf16"),
    _type("tfloat32", None, "tf32", stored=LoopType.F32),
    _type("float8_e4m3", LoopType.F8E4M3, "float8e4"),
    _type("float8_e4m3fn", LoopType.F8E4M3FN, "float8e4m3fn"),
    _type("float8_e5m2", LoopType.F8E5M2, "float8e5"),
    _packed("float8_e5m2_x4", LoopType.U32, LoopType.F8E5M2.numpy),
    _packed("float8_e4m3fn_x4", LoopType.U32, LoopType.F8E4M3FN.numpy),
    _type("float8_e8m0fnu", LoopType.F8E8M0, "float8e8m0"),
    _packed("float4_e2m1fn_x4", LoopType.U16, ml_dtypes.float4_e2m1fn),
)
# What becomes of NumPy's types of 64 bits, which no engine computes with.
NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
_INFO: dict[str, DTypeInfo] = {row.name: row for row in _TYPES}
NAMES: tuple[str, ...] = tuple(_INFO)

# NumPy has no types of these names. It then takes them for what their items are stored in, with the
# name as metadata, as in np.zeros(4, nl.float8_e4m3fn_x4); `named` tells them apart.
_METADATA = "nki"
_NAMED: dict[str, np.dtype[Any]] = {
    row.name: np.dtype(row.numpy, metadata={_METADATA: row.name})
    for row in _TYPES
    if row.is_packed or row.name == "tfloat32"
}
np.sctypeDict.update(_NAMED)  # type: ignore[arg-type]


def named(dtype: str) -> np.dtype[Any]:
    """Return NumPy's type for arrays of an NKI type: that of its items, which knows the name."""
    return _NAMED.get(dtype) or _INFO[dtype].numpy


def name_of(dtype: np.dtype[Any]) -> str:
    """Return NKI's name of the type of a NumPy array.

    Raises:
        NkiTypeError: NKI has no such type (NKI001).
    """
    known = dtype.metadata
    return canonical(dtype) if known is None else canonical(known.get(_METADATA, dtype))


# Every spelling met so far, of whatever type: names, aliases, NumPy's types and dtypes. It grows,
# because looking at an unknown object's attributes takes a microsecond.
_CANONICAL: dict[Any, str] = {
    spelling: row.name for row in _TYPES for spelling in (row.name, *row.aliases)
}


def canonical(dtype: Any) -> str:
    """Return NKI's name of a data type.

    Args:
        dtype: NKI's name or an alias; a NumPy or ml_dtypes type or dtype; or an object whose
            ``name``, ``__name__`` or ``str()`` is such a name, perhaps after a module's name
            (``torch.bfloat16``).

    Raises:
        NkiTypeError: NKI has no such type (NKI001).
    """
    try:
        found = _CANONICAL.get(dtype)
    except TypeError:  # unhashable, so surely no data type
        raise _unknown(dtype) from None
    return found if found is not None else _spell_out(dtype)


def _spell_out(dtype: Any) -> str:
    if isinstance(dtype, str):
        spellings: tuple[Any, ...] = (dtype,)
    else:
        spellings = (getattr(dtype, "name", None), getattr(dtype, "__name__", None), str(dtype))
    for spelling in spellings:
        if isinstance(spelling, str):
            found = _CANONICAL.get(spelling.rpartition(".")[2].lower())
            if found is not None:
                _CANONICAL[dtype] = found
                return found
    raise _unknown(dtype)


def _unknown(dtype: Any) -> NkiTypeError:
    text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    short = str(text).rpartition(".")[2]
    remedy = (
        "the engines compute with 32 bits at most: "
        f"convert to nl.{NARROWED[short]} before the kernel"
        if short in NARROWED
        else f"use one of {', '.join(NAMES)}"
    )
    return NkiTypeError("NKI001", f"{dtype!r} is no NKI data type", remedy)


def info(dtype: Any) -> DTypeInfo:
    """Return what is known of a data type in any accepted spelling.

    Raises:
        NkiTypeError: NKI has no such type (NKI001).
    """
    found = _INFO.get(dtype) if type(dtype) is str else None
    return found if found is not None else _INFO[canonical(dtype)]
