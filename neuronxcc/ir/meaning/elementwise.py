"""Elementwise operators in NumPy.

Arithmetic of 16 and 8-bit floats is done in float32 and rounded. Functions (exp, tanh, ...) are
computed in float64 and rounded, by way of float32, so that they are the measure in ulp of faster
ones. NaN propagates; whoever calls these silences NumPy's floating point warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuronxcc.ir.dtypes import DType, from_numpy
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

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


# ---- unary --------------------------------------------------------------------------------------


def _sign(x: Array) -> Array:
    """Zeros keep their sign, NaN stays; complex: the unit vector."""
    if np.iscomplexobj(x):
        size = np.abs(x)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    return np.where((x == 0) | np.isnan(x), x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's `math` on every element."""
    return np.vectorize(function, otypes=[np.float64])


def _lgamma(x: float) -> float:
    if math.isinf(x) or x > 2.5e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Poles: NaN at the negative integers, -inf at 0 and inf at -0.0, as PyTorch has it."""
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    shift = 0.0
    while x < 20:
        shift -= 1 / x
        x += 1
    y = 1 / (x * x)  # 0 for infinity, NaN for NaN
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132)))))
    return shift + (math.inf if math.isinf(x) else math.log(x) - 0.5 / x - series)


def _erfinv(x: float) -> float:
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    # Winitzki's approximation, then Newton's method on erfc, which is exact in the tail.
    a = 0.147
    log = math.log1p(-x * x)
    t = 2 / (math.pi * a) + log / 2
    y = math.sqrt(max(math.sqrt(t * t - log / a) - t, 0.0))
    target = abs(x)
    for _ in range(4):
        error = math.erf(y) - target if target < 0.5 else (1 - target) - math.erfc(y)
        y -= error * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return math.copysign(y, x)


def _popcnt(x: Array) -> Array:
    octets = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)
    return np.asarray(np.unpackbits(octets, axis=1).sum(axis=1).reshape(x.shape), x.dtype)


# Exact in the type of arithmetic: the wider one adds nothing.
_EXACT: dict[Op, Callable[[Array], Array]] = {
    Op.ABS: np.abs,
    Op.NEGATE: np.negative,
    Op.SIGN: _sign,
    Op.CEIL: np.ceil,
    Op.FLOOR: np.floor,
    Op.ROUND_EVEN: np.rint,
    Op.TRUNC: np.trunc,
    Op.SQRT: np.sqrt,
    Op.NOT: np.invert,
    Op.POPCNT: _popcnt,
    Op.CONJ: np.conj,
}
_FUNCTIONS: dict[Op, Callable[[Array], Array]] = {
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXPM1: np.expm1,
    Op.LOG: np.log,
    Op.LOG2: np.log2,
    Op.LOG10: np.log10,
    Op.LOG1P: np.log1p,
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.TAN: np.tan,
    Op.SINH: np.sinh,
    Op.COSH: np.cosh,
    Op.TANH: np.tanh,
    Op.ASIN: np.arcsin,
    Op.ACOS: np.arccos,
    Op.ATAN: np.arctan,
    Op.ASINH: np.arcsinh,
    Op.ACOSH: np.arccosh,
    Op.ATANH: np.arctanh,
    Op.ERF: _each(math.erf),
    Op.ERFC: _each(math.erfc),
    Op.ERFINV: _each(_erfinv),
    Op.LGAMMA: _each(_lgamma),
    Op.DIGAMMA: _each(_digamma),
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
}


def unary(node: Node, x: Array) -> Array:
    """An operator of Group.UNARY."""
    if node.op is Op.ABS and np.iscomplexobj(x):
        return cast(np.abs(precise(x)), node.dtype)
    if node.op in _EXACT and not np.iscomplexobj(x):
        return cast(_EXACT[node.op](arithmetic(x)), node.dtype)
    return cast({**_EXACT, **_FUNCTIONS}[node.op](precise(x)), node.dtype)


def predicate(node: Node, x: Array) -> Array:
    """IS_FINITE, IS_NAN."""
    return np.isfinite(arithmetic(x)) if node.op is Op.IS_FINITE else np.isnan(arithmetic(x))


def part(node: Node, x: Array) -> Array:
    """REAL, IMAG."""
    return x.real if node.op is Op.REAL else x.imag


def convert(node: Node, x: Array) -> Array:
    """CONVERT."""
    return cast(x, node["dtype"])


def bitcast(node: Node, x: Array) -> Array:
    """BITCAST_CONVERT."""
    return np.asarray(np.ascontiguousarray(x).view(node["dtype"].numpy).reshape(x.shape))


def reduce_precision(node: Node, x: Array) -> Array:
    """REDUCE_PRECISION: on the bits, in the way XLA does it."""
    info = _layout(node.dtype)
    width, source_exponent, source_mantissa = info
    unsigned = np.dtype(f"u{width // 8}").type
    bits = np.ascontiguousarray(x).view(unsigned).reshape(x.shape)
    exponent, mantissa = node["exponent_bits"], node["mantissa_bits"]
    sign = bits & unsigned(1 << (width - 1))
    rest = bits & unsigned((1 << (width - 1)) - 1)
    infinity = unsigned(((1 << source_exponent) - 1) << source_mantissa)
    if mantissa < source_mantissa:
        drop = source_mantissa - mantissa
        last = (rest >> unsigned(drop)) & unsigned(1)
        rest = rest + last + unsigned((1 << (drop - 1)) - 1)
        rest &= unsigned(((1 << (width - 1)) - 1) & ~((1 << drop) - 1))
    if exponent < source_exponent:
        bias, reduced = (1 << (source_exponent - 1)) - 1, (1 << (exponent - 1)) - 1
        greatest = unsigned((bias + reduced) << source_mantissa)
        least = unsigned((bias - reduced) << source_mantissa)
        rest = np.where((rest & infinity) > greatest, infinity, rest)
        rest = np.where((rest & infinity) <= least, unsigned(0), rest)
    rounded = np.ascontiguousarray(sign | rest).view(x.dtype).reshape(x.shape)
    return np.where(np.isnan(arithmetic(x)), x, rounded)


def _layout(dtype: DType) -> tuple[int, int, int]:
    """Bits of a float: all, exponent, mantissa."""
    layouts = {
        DType.F16: (16, 5, 10),
        DType.BF16: (16, 8, 7),
        DType.F32: (32, 8, 23),
        DType.F64: (64, 11, 52),
    }
    return layouts[dtype]


# ---- binary -------------------------------------------------------------------------------------


def _signed(x: Array) -> bool:
    return x.dtype.kind == "i"


def _divide(a: Array, b: Array) -> Array:
    """Integers: toward zero; by zero all bits are set; the least by -1 is itself, as in XLA."""
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = np.floor_divide(a, safe)
    if _signed(a):
        inexact = (a - quotient * safe) != 0
        quotient = quotient + (inexact & ((a < 0) != (b < 0)))
    return np.where(b == 0, np.invert(np.zeros_like(a)), quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """Sign of the dividend; integers by zero: the dividend."""
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    if _signed(b):
        safe = np.where(safe == -1, 1, safe)  # the least by -1 overflows; both leave 0
    return np.where(b == 0, a, np.fmod(a, safe)).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    """Integers: wraps; a negative exponent gives 0 but for bases 1 and -1."""
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    result = np.ones_like(a)
    base, left = a.copy(), np.where(b < 0, 0, b).astype(b.dtype)
    while np.any(left):
        result = np.where(left & 1, result * base, result).astype(a.dtype)
        base, left = base * base, left >> 1
    if not _signed(a):
        return result
    odd = (b & 1) != 0
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0))
    return np.where(b < 0, inverse, result).astype(a.dtype)


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


def _shift(kind: Op) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        """Amounts of the width or more (negative ones too) shift every bit out."""
        bits = a.dtype.itemsize * 8
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        signed = np.dtype(f"i{a.dtype.itemsize}")
        amount = b.astype(unsigned)
        over = amount >= bits
        inside = np.where(over, 0, amount).astype(unsigned)
        if kind is Op.SHIFT_RIGHT_ARITHMETIC:
            value = a.astype(signed)
            most = np.where(over, bits - 1, inside).astype(signed)
            return np.asarray(value >> most, a.dtype)
        value = a.astype(unsigned)
        shifted = value << inside if kind is Op.SHIFT_LEFT else value >> inside
        return np.where(over, 0, shifted).astype(unsigned).astype(a.dtype)

    return shift


_BINARY: dict[Op, Callable[[Array, Array], Array]] = {
    Op.ADD: np.add,
    Op.SUBTRACT: np.subtract,
    Op.MULTIPLY: np.multiply,
    Op.DIVIDE: _divide,
    Op.REMAINDER: _remainder,
    Op.MAXIMUM: maximum,
    Op.MINIMUM: minimum,
    Op.COPYSIGN: np.copysign,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.SHIFT_LEFT: _shift(Op.SHIFT_LEFT),
    Op.SHIFT_RIGHT_ARITHMETIC: _shift(Op.SHIFT_RIGHT_ARITHMETIC),
    Op.SHIFT_RIGHT_LOGICAL: _shift(Op.SHIFT_RIGHT_LOGICAL),
}


def binary(node: Node, a: Array, b: Array) -> Array:
    """An operator of Group.BINARY."""
    if node.op is Op.NEXTAFTER:  # a step of the type itself
        return np.nextafter(a, b)
    if node.op is Op.POWER:
        return cast(_power(precise(a), precise(b)), node.dtype)
    if node.op is Op.ATAN2:
        return cast(np.arctan2(precise(a), precise(b)), node.dtype)
    return cast(_BINARY[node.op](arithmetic(a), arithmetic(b)), node.dtype)


def complex_(node: Node, a: Array, b: Array) -> Array:
    """COMPLEX. Assigned part by part: a + 1j * b makes NaN of infinite imaginary parts."""
    result = np.empty(a.shape, node.dtype.numpy)
    result.real, result.imag = a, b
    return result


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(node: Node, a: Array, b: Array) -> Array:
    """COMPARE."""
    return _COMPARE[node["direction"]](arithmetic(a), arithmetic(b))


def select(_node: Node, pred: Array, on_true: Array, on_false: Array) -> Array:
    """SELECT."""
    return np.where(pred, on_true, on_false)


def clamp(node: Node, low: Array, x: Array, high: Array) -> Array:
    """CLAMP."""
    raised = maximum(arithmetic(x), arithmetic(low))
    return cast(minimum(raised, arithmetic(high)), node.dtype)
