"""Operators on floating point numbers that are defined by their bits."""

from __future__ import annotations

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val
from neuronxcc.codegen.llvm.formats import from_memory, memory_elem, to_memory
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.ir.dtypes import DType

# Bits of exponent and mantissa.
_LAYOUT = {
    DType.F8E4M3: (4, 3),
    DType.F8E4M3FN: (4, 3),
    DType.F8E5M2: (5, 2),
    DType.F16: (5, 10),
    DType.BF16: (8, 7),
    DType.F32: (8, 23),
    DType.F64: (11, 52),
}


def _integers(em: Emitter, dtype: DType, value: Val) -> Num:
    bits = to_memory(em, dtype, value)
    return Num(em, em.bits(bits, f"i{BITS[memory_elem(dtype)]}"))


def _floats(em: Emitter, dtype: DType, bits: Num) -> Val:
    return from_memory(em, dtype, em.bits(bits.val, memory_elem(dtype)))


def next_after(em: Emitter, dtype: DType, a: Val, b: Val) -> Val:
    """The neighbour of a in the direction of b, among the numbers of `dtype`."""
    if dtype not in _LAYOUT:
        raise CodegenUnsupported(f"nextafter of {dtype.value}")
    a, b = em.join(a, b)
    x, y = Num(em, a), Num(em, b)
    bits = _integers(em, dtype, a)
    width = BITS[bits.val.elem]
    sign = bits & -(1 << (width - 1))
    magnitude = bits & ((1 << (width - 1)) - 1)
    outward = (y > x).val
    outward = em.compare("eq", outward, em.compare("sge", sign.val, em.like(sign.val, 0)))
    moved = Num(em, outward).where(magnitude + 1, magnitude - 1) | sign
    from_zero = (_integers(em, dtype, b) & -(1 << (width - 1))) | 1
    result = _floats(em, dtype, magnitude.equals(0).where(from_zero, moved))
    same = x.equals(y).where(y, Num(em, result))
    return x.is_nan().where(x, y.is_nan().where(y, same)).val


def reduce_precision(em: Emitter, dtype: DType, a: Val, exponent: int, mantissa: int) -> Val:
    """Rounds to a format of so many bits, to nearest even; what is too small becomes zero."""
    if dtype not in _LAYOUT:
        raise CodegenUnsupported(f"reduce_precision of {dtype.value}")
    own_exponent, own_mantissa = _LAYOUT[dtype]
    bits = _integers(em, dtype, a)
    width = BITS[bits.val.elem]
    sign = bits & -(1 << (width - 1))
    rest = bits & ((1 << (width - 1)) - 1)
    infinity = ((1 << own_exponent) - 1) << own_mantissa
    if mantissa < own_mantissa:
        drop = own_mantissa - mantissa
        rest = rest + ((rest >> drop) & 1) + ((1 << (drop - 1)) - 1)
        rest = rest & -(1 << drop)
    if exponent < own_exponent:
        bias, reduced = (1 << (own_exponent - 1)) - 1, (1 << (exponent - 1)) - 1
        greatest, least = (bias + reduced) << own_mantissa, (bias - reduced) << own_mantissa
        field = rest & infinity
        rest = (field > greatest).where(infinity, rest)
        rest = (field <= least).where(0, rest)
    x = Num(em, a)
    return x.is_nan().where(x, Num(em, _floats(em, dtype, rest | sign))).val
