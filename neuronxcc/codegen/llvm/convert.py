"""Conversions between types."""

from __future__ import annotations

from neuronxcc.codegen.llvm.complexes import Pair, Value
from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.formats import register_elem, round_to
from neuronxcc.ir.dtypes import DType


def convert(em: Emitter, value: Value, source: DType, target: DType) -> Value:
    """The value as another type; of a complex one the real part, if that type is real."""
    if not isinstance(value, Pair) and not target.is_complex:
        return real(em, value, source, target)
    part = _PART.get(source, source)
    re = value.re if isinstance(value, Pair) else value
    if target is DType.PRED:
        assert isinstance(value, Pair)
        nonzero = (real(em, v, part, target) for v in (value.re, value.im))
        return em.binary("or", *nonzero)
    if not target.is_complex:
        return real(em, re, part, target)
    re = real(em, re, part, _PART[target])
    if isinstance(value, Pair):
        return Pair(re, real(em, value.im, part, _PART[target]))
    return Pair(re, em.like(re, 0.0))


def real(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    """A real value as another real type. Float to integer truncates and saturates; NaN gives 0."""
    if source is target:
        return value
    if target is DType.PRED:
        return em.compare("une" if source.is_float else "ne", value, em.like(value, 0))
    if target.is_integer:
        return _to_integer(em, value, source, target)
    if source.is_float:
        return _float_to_float(em, value, source, target)
    opcode = "sitofp" if source.is_signed else "uitofp"
    return round_to(em, target, em.cast(opcode, value, register_elem(target)))


def _to_integer(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    elem = register_elem(target)
    if not source.is_float:
        return em.integer(value, elem, signed=source.is_signed)
    name = "fptosi.sat" if target.is_signed else "fptoui.sat"
    return em.intrinsic(name, elem, value, overload=value)


_PART = {DType.C64: DType.F32, DType.C128: DType.F64}


_WIDER = {
    DType.F32: frozenset({DType.F16, DType.BF16, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
    DType.F16: frozenset({DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
    DType.BF16: frozenset({DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
}


def _float_to_float(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    if target is DType.F64:
        return em.cast("fpext", value, "double")
    if source is DType.F64:
        # To a narrow type through float32, as PyTorch converts.
        value = em.cast("fptrunc", value, "float")
    if source in _WIDER.get(target, frozenset()):
        return value
    return round_to(em, target, value)
