"""Elements in memory and in registers, and rounding to the narrow formats.

A scalar of a float type narrower than 32 bits is held as a float32 whose value the type can
represent: loads extend, operations compute in float32 and round, stores drop bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.ir.dtypes import DType

_MEMORY = {
    DType.PRED: "i8", DType.S8: "i8", DType.U8: "i8", DType.S16: "i16", DType.U16: "i16",
    DType.S32: "i32", DType.U32: "i32", DType.S64: "i64", DType.U64: "i64",
    DType.F8E4M3: "i8", DType.F8E4M3FN: "i8", DType.F8E5M2: "i8", DType.F8E8M0: "i8",
    DType.F16: "i16", DType.BF16: "i16", DType.F32: "float", DType.F64: "double",
    DType.C64: "float", DType.C128: "double",
}  # fmt: skip
_REGISTER = {
    DType.PRED: "i1", DType.F8E4M3: "float", DType.F8E4M3FN: "float", DType.F8E5M2: "float",
    DType.F8E8M0: "float", DType.F16: "float", DType.BF16: "float",
}  # fmt: skip


def memory_elem(dtype: DType) -> str:
    """LLVM's type of an element in memory; of one part for complex types."""
    return _MEMORY[dtype]


def register_elem(dtype: DType) -> str:
    """LLVM's type of an element in a register; of one part for complex types."""
    return _REGISTER.get(dtype, _MEMORY[dtype])


@dataclass(frozen=True, slots=True)
class _Format:
    """A small binary floating point format with a sign bit."""

    exponent: int
    mantissa: int
    finite_only: bool  # no infinities; the only NaN has all bits set

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def infinity(self) -> int:
        """The code after the largest finite value: infinity, or NaN in a finite-only format."""
        if self.finite_only:
            return (1 << (self.width - 1)) - 1
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def nan(self) -> int:
        if self.finite_only:
            return self.infinity
        return self.infinity | (1 << (self.mantissa - 1))


_FORMATS = {
    DType.F8E4M3: _Format(4, 3, finite_only=False),
    DType.F8E4M3FN: _Format(4, 3, finite_only=True),
    DType.F8E5M2: _Format(5, 2, finite_only=False),
    DType.F16: _Format(5, 10, finite_only=False),
}
_SIGN = -0x80000000
_FLOAT_NAN = 0x7FC00000


def _expand(em: Emitter, fmt: _Format, raw: Val) -> Val:
    """Small format -> float32: shift the fields into place, correct the bias by a product."""
    code = Num(em, em.integer(raw, "i32", signed=False))
    magnitude = code & ((1 << (fmt.width - 1)) - 1)
    sign = (code & (1 << (fmt.width - 1))) << (32 - fmt.width)
    placed = magnitude << (23 - fmt.mantissa)
    # Exact also for denormals of the small format, which are denormals of float32 at this point.
    value = (placed.bits("float") * 2.0 ** (127 - fmt.bias)).bits("i32")
    special = (magnitude >= fmt.infinity).where(placed | 0x7F800000, value)
    if fmt.finite_only:
        special = magnitude.equals(fmt.infinity).where(_FLOAT_NAN, value)
    return (special | sign).bits("float").val


def _shrink(em: Emitter, fmt: _Format, value: Val) -> Val:
    """float32 -> code of the small format (in an i32), rounded to nearest even."""
    x = Num(em, value)
    bits = x.bits("i32")
    magnitude = bits & 0x7FFFFFFF
    sign = bits.shift_right_logical(32 - fmt.width) & (1 << (fmt.width - 1))
    shift = 23 - fmt.mantissa
    rebased = magnitude - ((127 - fmt.bias) << 23)
    normal = (rebased + ((rebased >> shift) & 1) + ((1 << (shift - 1)) - 1)) >> shift
    # Adding a power of two whose last place is the smallest denormal rounds to that place.
    magic_bits = (127 - fmt.bias + 1 + shift) << 23
    magic = Num(em, em.const("i32", magic_bits, value.lanes)).bits("float")
    denormal = (magnitude.bits("float") + magic).bits("i32") - magic_bits
    code = (magnitude < ((127 - fmt.bias + 1) << 23)).where(denormal, normal)
    # What is too large becomes infinity, or the largest value of a finite-only format.
    code = code.lower(fmt.infinity - 1 if fmt.finite_only else fmt.infinity)
    code = x.is_nan().where(fmt.nan, code)
    return (code | sign).val


def _expand_e8m0(em: Emitter, raw: Val) -> Val:
    code = Num(em, em.integer(raw, "i32", signed=False))
    bits = code.equals(0).where(0x00400000, code << 23)
    return code.equals(255).where(_FLOAT_NAN, bits).bits("float").val


def _shrink_e8m0(em: Emitter, value: Val) -> Val:
    """The nearest power of two of |x|, upwards from halfway; at least 2^-127, NaN if too large.

    PyTorch and ml_dtypes round all denormals above 2^-127 (code 0) up, although it may be nearer.
    """
    magnitude = Num(em, value).bits("i32") & 0x7FFFFFFF
    code = (magnitude + 0x400000).shift_right_logical(23)
    code = (magnitude < 0x400001).where(0, code)
    return code.lower(255).val


def _half_instructions(em: Emitter) -> bool:
    return em.host.has("f16c") or not em.host.triple.startswith("x86_64")


def round_bf16(em: Emitter, value: Val) -> Val:
    """float32 -> the nearest bfloat16, as a float32; in integers, which keep denormals."""
    x = Num(em, value)
    bits = x.bits("i32")
    odd = (bits & 0x10000).differs(0)
    rounded = (bits + odd.pick("i32", 0x8000, 0x7FFF)) & -0x10000
    return x.is_nan().where(_FLOAT_NAN, rounded).bits("float").val


def round_to(em: Emitter, dtype: DType, value: Val) -> Val:
    """A float32 (float64 for F64) rounded to `dtype`, held as registers hold it."""
    if dtype in (DType.F32, DType.F64):
        return value
    if dtype is DType.BF16:
        return round_bf16(em, value)
    return from_memory(em, dtype, to_memory(em, dtype, value))


def from_memory(em: Emitter, dtype: DType, raw: Val) -> Val:
    """Convert a loaded value to the register's form (one part of a complex number)."""
    if dtype is DType.PRED:
        return em.compare("ne", raw, em.like(raw, 0))
    if dtype is DType.BF16:
        return (Num(em, em.integer(raw, "i32", signed=False)) << 16).bits("float").val
    if dtype is DType.F16 and _half_instructions(em):
        return em.cast("fpext", em.bits(raw, "half"), "float")
    if dtype is DType.F8E8M0:
        return _expand_e8m0(em, raw)
    if dtype in _FORMATS:
        return _expand(em, _FORMATS[dtype], raw)
    return raw


def _upper_half(em: Emitter, value: Val) -> Val:
    """The bits of a bfloat16 that a float32 holds."""
    if not value.lanes:
        return em.integer(Num(em, value).bits("i32").shift_right_logical(16).val, "i16")
    # Of two registers that is one shuffle.
    halves = em.halves(value)
    return em.shuffle(halves, None, range(1, halves.lanes, 2))


def rounded_to_memory(em: Emitter, value: Val) -> Val:
    """float32 -> the nearest bfloat16, as it is stored."""
    whole = value.lanes > 0 and value.lanes % 32 == 0
    if not (whole and em.host.avx512 and em.host.has("avx512bf16")):
        return to_memory(em, DType.BF16, round_bf16(em, value))
    # The instruction takes two registers, and denormal numbers for 0: these are rare, so all
    # lanes go the slow way if one has any.
    parts, denormal = [], None
    for first in range(0, value.lanes, 32):
        low, high = (em.shuffle(value, None, range(i, i + 16)) for i in (first, first + 16))
        parts.append(_two_to_bf16(em, low, high))
        for half in (low, high):
            one = _class_mask(em, half, _DENORMAL)
            denormal = one if denormal is None else em.binary("or", denormal, one)
    assert denormal is not None
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [em.shuffle(a, b, range(2 * a.lanes)) for a, b in pairs]
    return em.either(
        em.compare("ne", denormal, em.const(denormal.elem, 0)),
        lambda: to_memory(em, DType.BF16, round_bf16(em, value)),
        parts[0],
    )


_DENORMAL = 0x20


def _two_to_bf16(em: Emitter, low: Val, high: Val) -> Val:
    name = "@llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    em.declarations[name] = f"declare <32 x bfloat> {name}(<16 x float>, <16 x float>)"
    pair = em.pure("bfloat", 32, f"call <32 x bfloat> {name}({high.typed}, {low.typed})", high, low)
    return em.bits(pair, "i16")


def _class_mask(em: Emitter, value: Val, kinds: int) -> Val:
    """The lanes of these kinds as bits of an i16."""
    name = "@llvm.x86.avx512.fpclass.ps.512"
    em.declarations[name] = f"declare <16 x i1> {name}(<16 x float>, i32)"
    mask = em.pure("i1", 16, f"call <16 x i1> {name}({value.typed}, i32 {kinds})", value)
    return em.bits_of_mask(mask)


def to_memory(em: Emitter, dtype: DType, value: Val) -> Val:
    """A register's value -> what is stored; rounds, except to bfloat16 (see round_bf16)."""
    if dtype is DType.PRED:
        return em.integer(value, "i8", signed=False)
    if dtype is DType.BF16:
        return _upper_half(em, value)
    if dtype is DType.F16 and _half_instructions(em):
        return em.bits(em.cast("fptrunc", value, "half"), "i16")
    if dtype is DType.F8E8M0:
        return em.integer(_shrink_e8m0(em, value), "i8")
    if dtype in _FORMATS:
        return em.integer(_shrink(em, _FORMATS[dtype], value), _MEMORY[dtype])
    return value
