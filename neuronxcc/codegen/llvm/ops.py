"""Elementwise operators on registers: one table per class of types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import bitwise, complexes, integers, libm, math32, math64, wide
from neuronxcc.codegen.llvm.complexes import Pair, Value
from neuronxcc.codegen.llvm.convert import convert
from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.formats import round_to
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


@dataclass(frozen=True, slots=True)
class Typed:
    """An operator with its types.

    Attributes:
        op: The operator.
        dtype: Of the result.
        source: Of the first operand (for SELECT, of the second).
        direction: Of COMPARE.
    """

    op: Op
    dtype: DType
    source: DType
    direction: str = ""


def apply(em: Emitter, what: Typed, srcs: Sequence[Value]) -> Value:
    """The operator's result, rounded to its type.

    Raises:
        CodegenUnsupported: There is no code for this operator on these types.
    """
    special = _SPECIAL.get(what.op)
    if special is not None:
        return special(em, what, *srcs)
    if what.source.is_complex or what.dtype.is_complex:
        return _complex(em, what, srcs)
    vals = [s for s in srcs if isinstance(s, Val)]
    if what.op is Op.COMPARE:
        return _compare(em, what, vals)
    if what.source.is_float:
        return _float(em, what, vals)
    emit = integers.table(what.source).get(what.op)
    if emit is None:
        raise _missing(what)
    return emit(em, *vals)


def _missing(what: Typed) -> CodegenUnsupported:
    return CodegenUnsupported(f"{what.op.value} has no implementation for {what.source.value}")


def _complex(em: Emitter, what: Typed, srcs: Sequence[Value]) -> Value:
    result = complexes.apply(em, what.op, list(srcs), what.direction)
    if result is None:
        raise _missing(what)
    return result


def _float(em: Emitter, what: Typed, vals: Sequence[Val]) -> Val:
    nums = [Num(em, v) for v in vals]
    if what.op in _EXACT:
        return _EXACT[what.op](*nums).val
    table = _FLOAT64 if what.source is DType.F64 else _FLOAT32
    formula = _FLOAT.get(what.op) or table.get(what.op)
    result = _library(em, what, vals) if formula is None else formula(*nums).val
    return round_to(em, what.dtype, result)


def _library(em: Emitter, what: Typed, vals: Sequence[Val]) -> Val:
    name = libm.UNARY.get(what.op) or libm.BINARY.get(what.op)
    if name is None:
        raise _missing(what)
    elem = vals[0].elem
    return em.call_each(name if elem == "double" else name + "f", elem, *vals)


def select(em: Emitter, condition: Val, yes: Value, no: Value) -> Value:
    """`yes` where the condition holds, else `no`."""
    if isinstance(yes, Pair) and isinstance(no, Pair):
        return Pair(em.select(condition, yes.re, no.re), em.select(condition, yes.im, no.im))
    assert isinstance(yes, Val)
    assert isinstance(no, Val)
    return em.select(condition, yes, no)


def maximum(a: Num, b: Num) -> Num:
    """The larger one; NaN if either is; 0.0 is larger than -0.0."""
    return _extreme("maximum", a, b)


def minimum(a: Num, b: Num) -> Num:
    """The smaller one; NaN if either is; -0.0 is smaller than 0.0."""
    return _extreme("minimum", a, b)


def _extreme(name: str, a: Num, b: Num) -> Num:
    found = Num(a.em, a.em.intrinsic(name, a.val.elem, a.val, b.val))
    if a.val.lanes > 1:
        return found
    # LLVM 22 loses a signalling NaN of one number beside an operand that it knows is none.
    return Num(a.em, a.em.compare("uno", a.val, b.val)).where(a + b, found)


def _sign(x: Num) -> Num:
    nonzero = math32.copy_sign(Num(x.em, x.em.like(x.val, 1.0)), x)
    return (x.is_nan() | x.equals(0.0)).where(x, nonzero)


def _finite(x: Num) -> Num:
    return x.abs() < float("inf")


# No rounding: the result is representable in the operands' type, however narrow.
_EXACT: dict[Op, Callable[..., Num]] = {
    Op.ABS: lambda x: x.abs(),
    Op.NEGATE: lambda x: -x,
    Op.SIGN: _sign,
    Op.CEIL: lambda x: x.call("ceil"),
    Op.FLOOR: lambda x: x.call("floor"),
    Op.TRUNC: lambda x: x.call("trunc"),
    Op.ROUND_EVEN: lambda x: x.call("roundeven"),
    Op.MAXIMUM: maximum,
    Op.MINIMUM: minimum,
    Op.CLAMP: lambda low, x, high: minimum(maximum(x, low), high),
    Op.COPYSIGN: lambda x, y: math32.copy_sign(x.abs(), y),
    Op.IS_NAN: lambda x: x.is_nan(),
    Op.IS_FINITE: _finite,
    Op.REAL: lambda x: x,
}

_FLOAT: dict[Op, Callable[..., Num]] = {
    Op.ADD: lambda a, b: a + b,
    Op.SUBTRACT: lambda a, b: a - b,
    Op.MULTIPLY: lambda a, b: a * b,
    Op.DIVIDE: lambda a, b: a / b,
    Op.SQRT: lambda x: x.sqrt(),
    Op.RSQRT: math32.rsqrt,
}

_FLOAT32: dict[Op, Callable[..., Num]] = {
    Op.EXP: math32.exp,
    Op.EXP2: math32.exp2,
    Op.EXPM1: math32.expm1,
    Op.LOG: math32.log,
    Op.LOG1P: math32.log1p,
    Op.TANH: math32.tanh,
    Op.ERF: math32.erf,
    Op.LOGISTIC: math32.logistic,
    Op.NORMAL_CDF: math32.normal_cdf,
    Op.NORMAL_PDF: math32.normal_pdf,
    Op.LOG2: wide.log2,
    Op.LOG10: wide.log10,
    Op.SIN: wide.sin,
    Op.COS: wide.cos,
    Op.TAN: wide.tan,
    Op.SINH: wide.sinh,
    Op.COSH: wide.cosh,
    Op.ASIN: wide.asin,
    Op.ACOS: wide.acos,
    Op.ATAN: wide.atan,
    Op.ASINH: wide.asinh,
    Op.ACOSH: wide.acosh,
    Op.ATANH: wide.atanh,
    Op.ERFC: wide.erfc,
    Op.ERFINV: wide.erfinv,
    Op.DIGAMMA: wide.digamma,
    Op.POWER: wide.power,
    Op.ATAN2: wide.atan2,
}
# LGAMMA and REMAINDER of float32, and most functions of float64, call the C library (libm.py).
_FLOAT64: dict[Op, Callable[..., Num]] = {
    Op.LOGISTIC: math64.logistic,
    Op.NORMAL_CDF: math64.normal_cdf,
    Op.NORMAL_PDF: math64.normal_pdf,
    Op.ERFINV: math64.erfinv,
    Op.DIGAMMA: math64.digamma,
}

_COMPARE_FLOAT = {"EQ": "oeq", "NE": "une", "LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge"}
_COMPARE_SIGNED = {"EQ": "eq", "NE": "ne", "LT": "slt", "LE": "sle", "GT": "sgt", "GE": "sge"}
_COMPARE_UNSIGNED = {"EQ": "eq", "NE": "ne", "LT": "ult", "LE": "ule", "GT": "ugt", "GE": "uge"}


def _compare(em: Emitter, what: Typed, vals: Sequence[Val]) -> Val:
    table = _COMPARE_FLOAT
    if not what.source.is_float:
        table = _COMPARE_SIGNED if what.source.is_signed else _COMPARE_UNSIGNED
    return em.compare(table[what.direction], vals[0], vals[1])


def _nextafter(em: Emitter, what: Typed, a: Val, b: Val) -> Val:
    return bitwise.next_after(em, what.dtype, a, b)


def _reduce_precision(em: Emitter, what: Typed, x: Val, exponent: Val, mantissa: Val) -> Val:
    return bitwise.reduce_precision(em, what.dtype, x, int(exponent.text), int(mantissa.text))


# Operators whose operands or results are of other types than one.
_SPECIAL: dict[Op, Callable[..., Value]] = {
    Op.SELECT: lambda em, _, condition, yes, no: select(em, condition, yes, no),
    Op.CONVERT: lambda em, what, x: convert(em, x, what.source, what.dtype),
    Op.NEXTAFTER: _nextafter,
    Op.REDUCE_PRECISION: _reduce_precision,
}
