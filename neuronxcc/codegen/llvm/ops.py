"""Elementwise operators on registers: one table per class of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import bitwise, complexes, libm, math32, math64, wide
from neuronxcc.codegen.llvm.complexes import Pair, Value
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val
from neuronxcc.codegen.llvm.formats import memory_elem, register_elem, round_to, to_memory
from neuronxcc.codegen.llvm.formats import from_memory as extend
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


def apply(
    em: Emitter,
    op: Op,
    dtype: DType,
    srcs: Sequence[Value],
    src_dtypes: Sequence[DType],
    direction: str = "",
) -> Value:
    """The operator's result, of type `dtype`, rounded to it."""
    first = src_dtypes[0] if src_dtypes else dtype
    if op is Op.SELECT:
        assert isinstance(srcs[0], Val)
        return select(em, srcs[0], srcs[1], srcs[2])
    if any(d.is_complex for d in src_dtypes) or dtype.is_complex:
        return _complex(em, op, dtype, srcs, first, direction)
    vals = [s for s in srcs if isinstance(s, Val)]
    if op is Op.CONVERT:
        return convert(em, vals[0], first, dtype)
    if op is Op.BITCAST_CONVERT:
        return _bitcast(em, vals[0], first, dtype)
    if op is Op.COMPARE:
        return _compare(em, direction, first, vals)
    if first is DType.PRED:
        return _lookup(_PRED, op, first)(em, *vals)
    if first.is_integer:
        table = _SIGNED if first.is_signed else _UNSIGNED
        if first.is_unsigned and op not in table:
            table = _SIGNED
        return _lookup(table, op, first)(em, *vals)
    if op is Op.NEXTAFTER:
        return bitwise.next_after(em, dtype, vals[0], vals[1])
    if op is Op.REDUCE_PRECISION:
        return bitwise.reduce_precision(em, dtype, vals[0], *(int(v.text) for v in vals[1:]))
    nums = [Num(em, v) for v in vals]
    if op in _EXACT:
        return _EXACT[op](*nums).val
    table = _FLOAT | (_FLOAT64 if first is DType.F64 else _FLOAT32)
    result = table[op](*nums).val if op in table else _library(em, op, vals, first)
    return round_to(em, dtype, result)


def _complex(
    em: Emitter, op: Op, dtype: DType, srcs: Sequence[Value], source: DType, direction: str
) -> Value:
    if op is Op.CONVERT:
        return _convert_complex(em, srcs[0], source, dtype)
    result = complexes.apply(em, op, list(srcs), direction)
    if result is None:
        raise CodegenUnsupported(f"{op.value} of complex numbers")
    return result


def _lookup(table: Mapping[Op, Callable[..., Val]], op: Op, dtype: DType) -> Callable[..., Val]:
    found = table.get(op)
    if found is None:
        raise CodegenUnsupported(f"{op.value} is not defined on {dtype.value}")
    return found


def _library(em: Emitter, op: Op, vals: Sequence[Val], dtype: DType) -> Val:
    name = libm.UNARY.get(op) or libm.BINARY.get(op)
    if name is None:
        raise CodegenUnsupported(f"{op.value} has no implementation for {dtype.value}")
    elem = vals[0].elem
    return em.call_each(name if elem == "double" else name + "f", elem, *vals)


def select(em: Emitter, condition: Val, yes: Value, no: Value) -> Value:
    """`yes` where the condition holds, else `no`."""
    if isinstance(yes, Pair) and isinstance(no, Pair):
        return Pair(em.select(condition, yes.re, no.re), em.select(condition, yes.im, no.im))
    assert isinstance(yes, Val)
    assert isinstance(no, Val)
    return em.select(condition, yes, no)


# -- real floating point ----------------------------------------------------------------------


def maximum(a: Num, b: Num) -> Num:
    """The larger one; NaN if either is; 0.0 is larger than -0.0."""
    return Num(a.em, a.em.intrinsic("maximum", a.val.elem, a.val, b.val))


def minimum(a: Num, b: Num) -> Num:
    """The smaller one; NaN if either is; -0.0 is smaller than 0.0."""
    return Num(a.em, a.em.intrinsic("minimum", a.val.elem, a.val, b.val))


def _sign(x: Num) -> Num:
    nonzero = math32.copy_sign(Num(x.em, x.em.like(x.val, 1.0)), x)
    return (x.is_nan().__or__(x.equals(0.0))).where(x, nonzero)


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
    Op.ERFINV: math64.erfinv,
    Op.DIGAMMA: math64.digamma,
}

_COMPARE_FLOAT = {"EQ": "oeq", "NE": "une", "LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge"}
_COMPARE_SIGNED = {"EQ": "eq", "NE": "ne", "LT": "slt", "LE": "sle", "GT": "sgt", "GE": "sge"}
_COMPARE_UNSIGNED = {"EQ": "eq", "NE": "ne", "LT": "ult", "LE": "ule", "GT": "ugt", "GE": "uge"}


def _compare(em: Emitter, direction: str, dtype: DType, vals: Sequence[Val]) -> Val:
    if dtype.is_float:
        table = _COMPARE_FLOAT
    else:
        table = _COMPARE_SIGNED if dtype.is_signed else _COMPARE_UNSIGNED
    return em.compare(table[direction], vals[0], vals[1])


# -- integers ---------------------------------------------------------------------------------


def _instruction(opcode: str) -> Callable[..., Val]:
    return lambda em, a, b: em.binary(opcode, a, b)


def _pick(predicate: str) -> Callable[..., Val]:
    return lambda em, a, b: em.select(em.compare(predicate, a, b), a, b)


def _clamp(more: str, less: str) -> Callable[..., Val]:
    return lambda em, low, x, high: _pick(less)(em, _pick(more)(em, x, low), high)


def _divide(opcode: str) -> Callable[..., Val]:
    """As XLA: x / 0 is all ones, x % 0 is x; the smallest number divided by -1 wraps."""
    remainder = opcode.endswith("rem")

    def emit(em: Emitter, a: Val, b: Val) -> Val:
        a, b = em.join(a, b)
        zero = em.compare("eq", b, em.like(b, 0))
        unsafe = zero
        if opcode[0] == "s":
            smallest = em.like(a, -(1 << (BITS[a.elem] - 1)))
            wraps = em.binary(
                "and", em.compare("eq", a, smallest), em.compare("eq", b, em.like(b, -1))
            )
            unsafe = em.binary("or", zero, wraps)
        # a / 1 is a, which is also the wrapped quotient; a % 1 is 0.
        result = em.binary(opcode, a, em.select(unsafe, em.like(b, 1), b))
        return em.select(zero, a if remainder else em.like(a, -1), result)

    return emit


def _shift(opcode: str) -> Callable[..., Val]:
    """A shift by the width or more (or by a negative number) leaves zeros, or the sign."""

    def emit(em: Emitter, a: Val, b: Val) -> Val:
        a, b = em.join(a, b)
        width = BITS[a.elem]
        inside = em.compare("ult", b, em.like(b, width))
        if opcode == "ashr":
            return em.binary(opcode, a, em.select(inside, b, em.like(b, width - 1)))
        shifted = em.binary(opcode, a, em.select(inside, b, em.like(b, 0)))
        return em.select(inside, shifted, em.like(a, 0))

    return emit


def _integer_power(em: Emitter, a: Val, b: Val) -> Val:
    """By repeated squaring, wrapping; a negative exponent gives 0, except for bases 1 and -1."""
    base, exponent = em.join(a, b)
    one, zero = em.like(base, 1), em.like(base, 0)
    result, factor = one, base
    width = BITS[base.elem]
    for bit in range(width):
        mask = em.like(exponent, 1 << bit)
        is_set = em.compare("ne", em.binary("and", exponent, mask), zero)
        result = em.select(is_set, em.binary("mul", result, factor), result)
        factor = em.binary("mul", factor, factor)
    return result


def _signed_power(em: Emitter, a: Val, b: Val) -> Val:
    base, exponent = em.join(a, b)
    one, zero, minus = em.like(base, 1), em.like(base, 0), em.like(base, -1)
    result = _integer_power(em, base, exponent)
    odd = em.compare("ne", em.binary("and", exponent, one), zero)
    of_minus = em.select(odd, minus, one)
    negative = em.select(
        em.compare("eq", base, one),
        one,
        em.select(em.compare("eq", base, minus), of_minus, zero),
    )
    return em.select(em.compare("slt", exponent, zero), negative, result)


def _signed_sign(em: Emitter, a: Val) -> Val:
    zero, one, minus = em.like(a, 0), em.like(a, 1), em.like(a, -1)
    below = em.select(em.compare("slt", a, zero), minus, zero)
    return em.select(em.compare("sgt", a, zero), one, below)


_ANY_INTEGER: dict[Op, Callable[..., Val]] = {
    Op.ADD: _instruction("add"),
    Op.SUBTRACT: _instruction("sub"),
    Op.MULTIPLY: _instruction("mul"),
    Op.AND: _instruction("and"),
    Op.OR: _instruction("or"),
    Op.XOR: _instruction("xor"),
    Op.NOT: lambda em, a: em.binary("xor", a, em.like(a, -1)),
    Op.NEGATE: lambda em, a: em.binary("sub", em.like(a, 0), a),
    Op.SHIFT_LEFT: _shift("shl"),
    Op.SHIFT_RIGHT_LOGICAL: _shift("lshr"),
    Op.SHIFT_RIGHT_ARITHMETIC: _shift("ashr"),
    Op.POPCNT: lambda em, a: em.intrinsic("ctpop", a.elem, a),
    Op.CEIL: lambda em, a: a,
    Op.FLOOR: lambda em, a: a,
    Op.TRUNC: lambda em, a: a,
    Op.ROUND_EVEN: lambda em, a: a,
    Op.REAL: lambda em, a: a,
    Op.IS_FINITE: lambda em, a: em.const("i1", 1, a.lanes),
    Op.IS_NAN: lambda em, a: em.const("i1", 0, a.lanes),
}
_SIGNED = _ANY_INTEGER | {
    Op.ABS: lambda em, a: em.intrinsic("abs", a.elem, a, extra="i1 false"),
    Op.SIGN: _signed_sign,
    Op.MAXIMUM: _pick("sgt"),
    Op.MINIMUM: _pick("slt"),
    Op.CLAMP: _clamp("sgt", "slt"),
    Op.DIVIDE: _divide("sdiv"),
    Op.REMAINDER: _divide("srem"),
    Op.POWER: _signed_power,
}
_UNSIGNED = _ANY_INTEGER | {
    Op.ABS: lambda em, a: a,
    Op.SIGN: lambda em, a: em.integer(em.compare("ne", a, em.like(a, 0)), a.elem, signed=False),
    Op.MAXIMUM: _pick("ugt"),
    Op.MINIMUM: _pick("ult"),
    Op.CLAMP: _clamp("ugt", "ult"),
    Op.DIVIDE: _divide("udiv"),
    Op.REMAINDER: _divide("urem"),
    Op.POWER: _integer_power,
}
_PRED: dict[Op, Callable[..., Val]] = {
    Op.AND: _instruction("and"),
    Op.OR: _instruction("or"),
    Op.XOR: _instruction("xor"),
    Op.NOT: lambda em, a: em.binary("xor", a, em.like(a, 1)),
    Op.ADD: _instruction("or"),
    Op.MULTIPLY: _instruction("and"),
    Op.MAXIMUM: _instruction("or"),
    Op.MINIMUM: _instruction("and"),
    Op.CLAMP: lambda em, low, x, high: em.binary("and", em.binary("or", x, low), high),
}


# -- conversions ------------------------------------------------------------------------------


def convert(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    """Conversion of real types.

    Float to integer truncates and saturates; NaN gives 0.
    """
    if source is target:
        return value
    if target is DType.PRED:
        if source.is_float:
            return em.compare("une", value, em.like(value, 0))
        return em.compare("ne", value, em.like(value, 0))
    elem = register_elem(target)
    if source is DType.PRED:
        if target.is_float:
            return em.cast("uitofp", value, elem)
        return em.integer(value, elem, signed=False)
    if source.is_integer and target.is_integer:
        return em.integer(value, elem, signed=source.is_signed)
    if source.is_integer:
        opcode = "sitofp" if source.is_signed else "uitofp"
        return round_to(em, target, em.cast(opcode, value, elem))
    if target.is_integer:
        name = "fptosi.sat" if target.is_signed else "fptoui.sat"
        return em.intrinsic(name, elem, value, overload=value)
    return _convert_float(em, value, source, target)


_PART = {DType.C64: DType.F32, DType.C128: DType.F64}


def _convert_complex(em: Emitter, value: Value, source: DType, target: DType) -> Value:
    part = _PART.get(source, source)
    re = value.re if isinstance(value, Pair) else value
    if target is DType.PRED:
        assert isinstance(value, Pair)
        nonzero = (convert(em, v, part, target) for v in (value.re, value.im))
        return em.binary("or", *nonzero)
    if not target.is_complex:
        return convert(em, re, part, target)
    re = convert(em, re, part, _PART[target])
    if isinstance(value, Pair):
        return Pair(re, convert(em, value.im, part, _PART[target]))
    return Pair(re, em.like(re, 0.0))


_WIDER = {
    DType.F32: frozenset({DType.F16, DType.BF16, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
    DType.F16: frozenset({DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
    DType.BF16: frozenset({DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}),
}


def _convert_float(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    if target is DType.F64:
        return em.cast("fpext", value, "double")
    if source is DType.F64:
        # To a narrow type through float32, as PyTorch converts.
        value = em.cast("fptrunc", value, "float")
    if source in _WIDER.get(target, frozenset()):
        return value
    return round_to(em, target, value)


def _bitcast(em: Emitter, value: Val, source: DType, target: DType) -> Val:
    if source.itemsize != target.itemsize:
        raise CodegenUnsupported("bitcast_convert between types of different size")
    raw = em.bits(to_memory(em, source, value), memory_elem(target))
    return extend(em, target, raw)
