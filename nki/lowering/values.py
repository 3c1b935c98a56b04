"""How kernels read and write values: the expressions that mean what `nki.isa.cast` means.

An operand is loaded as the type that its items are stored in (`stored_type`), taken to float32 (or
to 64-bit integers) for arithmetic, and cast when it is stored. What is only moved is loaded and
stored as `bits_type`: a kernel holds narrow floating point as float32, which loses what a NaN says.
"""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.dtypes import NAMES, info

__all__ = [
    "UNSIGNED",
    "bits_type",
    "cast",
    "from_bits",
    "is_integer",
    "stored_type",
    "to_float32",
    "to_integer",
]

UNSIGNED = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
_F8E4M3FN_TO_NAN = 464.0  # halfway between 448, the largest value, and what would be 480


def _stored(name: str) -> DType:
    kind = info(name)
    # Bytes of bool_ need not be 0 or 1, so they are no pred.
    if kind.is_packed or name == "bool_":
        return UNSIGNED[kind.itemsize]
    return DType.F32 if kind.loop is None else kind.loop


_STORED = {name: _stored(name) for name in NAMES}


def stored_type(dtype: str) -> DType:
    """Return the type that kernels load and store items of an NKI type as."""
    return _STORED[dtype]


def bits_type(dtype: str) -> DType:
    """Return the unsigned integer of an item's size: the type of what is moved bit by bit."""
    return UNSIGNED[info(dtype).itemsize]


def is_integer(dtype: str) -> bool:
    """Return whether `nki.isa.cast.to_float32` reads it as an integer; `bool_` counts as one."""
    return stored_type(dtype).is_integer


def _tf32(value: Scalar) -> Scalar:
    return build.reduce_precision(value, 8, 10)


def to_float32(item: Scalar, dtype: str) -> Scalar:
    """Return a loaded item as the engines read it for arithmetic."""
    wide = build.convert(item, DType.F32)
    return _tf32(wide) if dtype == "tfloat32" else wide


def to_integer(item: Scalar) -> Scalar:
    """Return a loaded integer with 64 bits."""
    return build.convert(item, DType.S64)


def from_bits(bits: Scalar, dtype: str) -> Scalar:
    """Return a bit pattern of whatever width as what is stored for it, an unsigned integer.

    Upper bits are lost.
    """
    return build.convert(bits, bits_type(dtype))


def _to_e8m0(value: Scalar) -> Scalar:
    """A power of two's exponent: no zero, no sign, so anything else is NaN or the least power."""
    positive = build.compare("GT", value, 0.0)
    item = build.convert(value, DType.F8E8M0)
    nan = build.op(Op.BITCAST_CONVERT, build.const(0xFF, DType.U8), dtype=DType.F8E8M0)
    return build.select(positive, item, nan)


def _to_integer_type(value: Scalar, wanted: DType) -> Scalar:
    if value.dtype.is_integer:
        if value.dtype is wanted:
            return value
        wide = build.convert(value, DType.S64)
        bits = 8 * wanted.itemsize
        low, high = (
            (-(1 << bits - 1), (1 << bits - 1) - 1) if wanted.is_signed else (0, (1 << bits) - 1)
        )
        return build.convert(build.op(Op.CLAMP, build.const(low, DType.S64), wide, high), wanted)
    # The conversion saturates and takes NaN to 0 itself.
    return build.convert(build.op(Op.ROUND_EVEN, build.convert(value, DType.F32)), wanted)


def cast(value: Scalar, dtype: str) -> Scalar:
    """Return what an engine stores for a computed value: see `nki.isa.cast.write`.

    Args:
        value: float32, a pred (1 or 0), or integers.
        dtype: NKI's name of the destination's type; no packed one.
    """
    wanted = stored_type(dtype)
    if value.dtype is DType.PRED:
        value = build.convert(value, DType.F32)
    if dtype == "bool_":
        return build.convert(build.compare("NE", value, 0), DType.U8)
    if wanted.is_integer:
        return _to_integer_type(value, wanted)
    single = build.convert(value, DType.F32)
    if dtype == "tfloat32":
        return _tf32(single)
    if wanted is DType.F8E8M0:
        return _to_e8m0(single)
    item = build.convert(single, wanted)
    if wanted is DType.F8E4M3FN:
        # The tensor IR saturates; the engines write NaN beyond the largest value.
        size = build.op(Op.ABS, single)
        bits = build.op(Op.BITCAST_CONVERT, item, dtype=DType.U8)
        signed = build.op(Op.OR, bits, build.const(0x7F, DType.U8))
        nan = build.op(Op.BITCAST_CONVERT, signed, dtype=wanted)
        return build.select(build.compare("GT", size, _F8E4M3FN_TO_NAN), nan, item)
    return item
