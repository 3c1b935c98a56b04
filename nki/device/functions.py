"""Functions of one operand as instructions, and what emitters of operators share.

Some functions are one instruction of the Scalar Engine; others are made of several, so that they
are as exact as float32 allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from nki.device.emitter import Emitter, NoLoweringError, Operand, Value
from nki.device.types import HELD, INTEGERS32

__all__ = [
    "FUNCTIONS", "Emit", "absolute", "arctan", "as_value", "exactly",
    "rounded", "sign", "tile32", "typed"
]  # fmt: skip

Emit = Callable[[Emitter, Node, list[Operand]], Value]
_WHOLE = float(2**23)  # every float32 from here on is a whole number


def _activation(function: str, scale: float = 1.0, factor: float = 1.0) -> Emit:
    """Return ``factor * function(scale * x)``."""

    def made(e: Emitter, node: Node, operands: list[Operand]) -> Value:
        if factor == 1.0:
            return e.activation(function, operands[0], node.dtype, scale=scale)
        inner = e.activation(function, operands[0], DType.F32, scale=scale)
        return e.binary("multiply", inner, factor, node.dtype)

    return made


def _language(function: Callable[..., Any]) -> Emit:
    """Return a function of `nki.language`, which takes and returns float32 tiles."""

    def made(e: Emitter, node: Node, operands: list[Operand]) -> Value:
        x = tile32(e, operands[0])
        return rounded(e, Value(function(x.tile), DType.F32, x.vector), node.dtype)

    return made


def tile32(e: Emitter, x: Operand) -> Value:
    """Return a value in a float32 tile of its own in SBUF."""
    if isinstance(x, Value) and x.tile.dtype == "float32":
        return Value(e.on_sbuf(x.tile), DType.F32, x.vector)
    return e.copied(x, DType.F32, vector=True)


def rounded(e: Emitter, x: Value, dtype: DType) -> Value:
    """Return a value in a tile of its type."""
    if x.tile.dtype == HELD[dtype]:
        return Value(x.tile, dtype, x.vector)
    return e.copied(x, dtype)


def absolute(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return |x| of the node's type."""
    (x,) = operands
    if node.dtype in INTEGERS32:
        return e.integer("maximum", x, e.integer("subtract", 0, x, node.dtype), node.dtype)
    if node.dtype.is_integer:
        return _by_integers(e, node, "maximum", x, e.integer("subtract", 0, x, node.dtype))
    x = as_value(e, x)
    made = e.new(node.dtype, vector=x.vector)
    nisa.tensor_scalar(made, x.tile, op0="abs", operand0=None)
    return Value(made, node.dtype, x.vector)


def as_value(e: Emitter, x: Operand) -> Value:
    """Return an operand as a tile: a number becomes a vector."""
    return x if isinstance(x, Value) else e.copied(x, DType.F32, vector=True)


def _by_integers(e: Emitter, node: Node, op: str, a: Operand, b: Operand) -> Value:
    return e.integer(op, a, b, node.dtype)


def _negate(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    if node.dtype.is_integer:
        return e.integer("subtract", 0, operands[0], node.dtype)
    return e.binary("multiply", as_value(e, operands[0]), -1.0, node.dtype)


def sign(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return -1, 0 or 1 of the node's type."""
    if node.dtype in INTEGERS32:
        (x,) = operands
        above = e.integer("greater", x, 0, node.dtype)
        return e.integer("subtract", above, e.integer("less", x, 0, node.dtype), node.dtype)
    return e.activation("sign", operands[0], node.dtype)


def _round_even(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = tile32(e, operands[0])
    near = e.copied(e.copied(x, DType.S32), DType.F32)
    small = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(small, x.tile, op0="abs", operand0=None, op1="less", operand1=_WHOLE)
    made = e.copied(x, DType.F32)
    nisa.tensor_copy_predicated(made.tile, near.tile, small)
    return rounded(e, made, node.dtype)


def _expm1(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """e**x - 1 = 2 t / (1 - t) with t = tanh(x / 2), which is exact near 0; else exp(x) - 1."""
    x = tile32(e, operands[0])
    t = e.activation("tanh", x, DType.F32, scale=0.5)
    below = e.activation("reciprocal", e.binary("subtract", 1.0, t, DType.F32), DType.F32)
    near = e.binary("multiply", e.binary("multiply", t, 2.0, DType.F32), below, DType.F32)
    far = e.binary("subtract", e.activation("exp", x, DType.F32), 1.0, DType.F32)
    small = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(small, x.tile, op0="abs", operand0=None, op1="less", operand1=0.5)
    nisa.tensor_copy_predicated(far.tile, near.tile, small)
    return rounded(e, far, node.dtype)


def _log1p(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log(u) x / (u - 1) with u = 1 + x rounded: the error of u is divided out; x where u is 1."""
    x = tile32(e, operands[0])
    u = e.binary("add", x, 1.0, DType.F32)
    found = e.activation("log", u, DType.F32)
    rest = e.binary("subtract", u, 1.0, DType.F32)
    inverse = e.activation("reciprocal", rest, DType.F32)
    ratio = e.binary("multiply", x, inverse, DType.F32)
    near = e.binary("multiply", found, ratio, DType.F32)
    # Far from 0 nothing is to be corrected, and infinities would meet zeros.
    small = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(small, x.tile, op0="abs", operand0=None, op1="less", operand1=1.0)
    nisa.tensor_copy_predicated(found.tile, near.tile, small)
    exact = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(exact, rest.tile, op0="equal", operand0=0.0)
    nisa.tensor_copy_predicated(found.tile, x.tile, exact)
    return rounded(e, found, node.dtype)


def _sinh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """(m + m / (m + 1)) / 2 with m = expm1(|x|), and the sign of x."""
    x = tile32(e, operands[0])
    m = _expm1(e, typed(DType.F32), [absolute(e, typed(DType.F32), [x])])
    inverse = e.activation("reciprocal", e.binary("add", m, 1.0, DType.F32), DType.F32)
    ratio = e.binary("multiply", m, inverse, DType.F32)
    # m / (m + 1) is 1 where m is infinite.
    huge = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(huge, m.tile, op0="greater", operand0=1e30)
    nisa.tensor_copy_predicated(ratio.tile, 1.0, huge)
    total = e.binary("add", m, ratio, DType.F32)
    half = e.binary("multiply", total, 0.5, DType.F32)
    return e.binary("multiply", half, e.activation("sign", x, DType.F32), node.dtype)


def typed(dtype: DType) -> Node:
    """Return a node that stands for a result of a type."""
    return Node.make(Op.ABS, TensorType(dtype), ())


def _cosh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    (x,) = operands
    both = e.binary(
        "add",
        e.activation("exp", x, DType.F32),
        e.activation("exp", x, DType.F32, scale=-1.0),
        DType.F32,
    )
    return e.binary("multiply", both, 0.5, node.dtype)


def arctan(e: Emitter, x: Value) -> Value:
    """Return arctan in float32: the Scalar Engine's is documented from -pi/2 to pi/2."""
    size = absolute(e, typed(DType.F32), [x])
    large = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(large, size.tile, op0="greater", operand0=1.0)
    inner = e.copied(size, DType.F32)
    inverse = e.activation("reciprocal", size, DType.F32)
    nisa.tensor_copy_predicated(inner.tile, inverse.tile, large)
    near = e.activation("arctan", inner, DType.F32)
    rest = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(
        rest, near.tile, op0="multiply", operand0=-1.0, op1="add", operand1=math.pi / 2
    )
    nisa.tensor_copy_predicated(near.tile, rest, large)
    return e.binary("multiply", near, e.activation("sign", x, DType.F32), DType.F32)


def _atan(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    return rounded(e, arctan(e, tile32(e, operands[0])), node.dtype)


def _root_of_rest(e: Emitter, x: Value) -> Value:
    """sqrt((1 - x) (1 + x))."""
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    above = e.binary("add", x, 1.0, DType.F32)
    product = e.binary("multiply", Value(below, DType.F32, x.vector), above, DType.F32)
    return e.activation("sqrt", product, DType.F32)


def _asin(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """arctan(x / sqrt(1 - x x)); infinite ratios give pi / 2."""
    x = tile32(e, operands[0])
    inverse = e.activation("reciprocal", _root_of_rest(e, x), DType.F32)
    return rounded(e, arctan(e, e.binary("multiply", x, inverse, DType.F32)), node.dtype)


def _acos(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """2 arctan(sqrt(1 - x) / sqrt(1 + x))."""
    x = tile32(e, operands[0])
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    over = e.activation("sqrt", Value(below, DType.F32, x.vector), DType.F32)
    under = e.activation("sqrt", x, DType.F32, bias=1.0)
    ratio = e.binary("multiply", over, e.activation("reciprocal", under, DType.F32), DType.F32)
    return e.binary("multiply", arctan(e, ratio), 2.0, node.dtype)


def _asinh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """sign(x) log1p(|x| + x x / (1 + sqrt(x x + 1))); log(2 |x|) where x x is too large."""
    x = tile32(e, operands[0])
    size = absolute(e, typed(DType.F32), [x])
    square = e.binary("multiply", size, size, DType.F32)
    under = e.binary("add", e.activation("sqrt", square, DType.F32, bias=1.0), 1.0, DType.F32)
    ratio = e.binary("multiply", square, e.activation("reciprocal", under, DType.F32), DType.F32)
    found = _log1p(e, typed(DType.F32), [e.binary("add", size, ratio, DType.F32)])
    _replace_large(e, found, size)
    return e.binary("multiply", found, e.activation("sign", x, DType.F32), node.dtype)


def _replace_large(e: Emitter, found: Value, size: Value) -> None:
    large = e.new("uint8", vector=size.vector)
    nisa.tensor_scalar(large, size.tile, op0="greater", operand0=1e15)
    far = e.binary("add", e.activation("log", size, DType.F32), math.log(2), DType.F32)
    nisa.tensor_copy_predicated(found.tile, far.tile, large)


def _acosh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; log(2 x) where that is too large."""
    x = tile32(e, operands[0])
    t = e.binary("subtract", x, 1.0, DType.F32)
    product = e.binary("multiply", t, e.binary("add", x, 1.0, DType.F32), DType.F32)
    root = e.activation("sqrt", product, DType.F32)
    found = _log1p(e, typed(DType.F32), [e.binary("add", t, root, DType.F32)])
    _replace_large(e, found, x)
    return rounded(e, found, node.dtype)


def _atanh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log1p(2 |x| / (1 - |x|)) / 2, and the sign of x."""
    x = tile32(e, operands[0])
    size = absolute(e, typed(DType.F32), [x])
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, size.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    inverse = e.activation("reciprocal", Value(below, DType.F32, x.vector), DType.F32)
    ratio = e.binary("multiply", e.binary("multiply", size, 2.0, DType.F32), inverse, DType.F32)
    half = e.binary("multiply", _log1p(e, typed(DType.F32), [ratio]), 0.5, DType.F32)
    return e.binary("multiply", half, e.activation("sign", x, DType.F32), node.dtype)


def _normal_cdf(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    (x,) = operands
    inner = e.activation("erf", x, DType.F32, scale=math.sqrt(0.5))
    made = e.new(node.dtype, vector=inner.vector)
    nisa.tensor_scalar(made, inner.tile, op0="add", operand0=1.0, op1="multiply", operand1=0.5)
    return Value(made, node.dtype, inner.vector)


def _erfc(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    inner = e.activation("erf", operands[0], DType.F32)
    return e.binary("subtract", 1.0, inner, node.dtype)


def _normal_pdf(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    square = e.activation("square", operands[0], DType.F32)
    found = e.activation("exp", square, DType.F32, scale=-0.5)
    return e.binary("multiply", found, 1 / math.sqrt(2 * math.pi), node.dtype)


def _not(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = integers(e, operands[0], node.dtype)
    made = e.new(node.dtype, vector=x.vector)
    if node.dtype is DType.PRED:
        nisa.tensor_scalar(made, x.tile, op0="bitwise_xor", operand0=1)
    else:
        nisa.tensor_scalar(made, x.tile, op0="invert", operand0=None)
    return Value(made, node.dtype, x.vector)


def integers(e: Emitter, x: Operand, dtype: DType) -> Value:
    return x if isinstance(x, Value) else e.copied(x, dtype, vector=True)


def exactly(e: Emitter, x: Operand, dtype: DType) -> Value:
    """Return a value whose tile is of a type: for whoever looks at its bits."""
    if isinstance(x, Value) and x.tile.dtype == HELD[dtype]:
        return x
    return e.copied(x, dtype, vector=True)


def _popcnt(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Add up bits in pairs, then in fours, and so on."""
    bits = 8 * node.dtype.itemsize
    if bits > 32:
        raise NoLoweringError("bits of 64-bit integers are not counted by any engine")
    x = e.integer("add", operands[0], 0, DType.U32 if bits == 32 else DType.S32)
    vector = x.vector

    def masked(tile: Any, shift: int, mask: int) -> Value:
        made = e.new("uint32", vector=vector)
        if shift:
            nisa.tensor_scalar(
                made, tile, op0="right_shift", operand0=shift, op1="bitwise_and", operand1=mask
            )
        else:
            nisa.tensor_scalar(made, tile, op0="bitwise_and", operand0=mask)
        return Value(made, DType.U32, vector)

    tile = masked(x.tile, 0, (1 << bits) - 1).tile
    for shift, mask in (
        (1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)
    ):  # fmt: skip
        parts = masked(tile, 0, mask), masked(tile, shift, mask)
        tile = e.integer("add", *parts, DType.U32).tile
    return e.copied(Value(tile, DType.U32, vector), node.dtype)


def _is_finite(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = tile32(e, operands[0])
    made = e.new(node.dtype, vector=x.vector)
    nisa.tensor_scalar(made, x.tile, op0="abs", operand0=None, op1="less", operand1=math.inf)
    return Value(made, node.dtype, x.vector)


def _is_nan(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = as_value(e, operands[0])
    return e.binary("not_equal", x, x, node.dtype)


#: By operator.
FUNCTIONS: Final[Mapping[Op, Emit]] = {
    Op.ABS: absolute,
    Op.NEGATE: _negate,
    Op.SIGN: sign,
    Op.CEIL: _language(nl.ceil),
    Op.FLOOR: _language(nl.floor),
    Op.TRUNC: _language(nl.trunc),
    Op.ROUND_EVEN: _round_even,
    Op.EXP: _activation("exp"),
    Op.EXP2: _activation("exp", scale=math.log(2)),
    Op.EXPM1: _expm1,
    Op.LOG: _activation("log"),
    Op.LOG2: _activation("log", factor=1 / math.log(2)),
    Op.LOG10: _activation("log", factor=1 / math.log(10)),
    Op.LOG1P: _log1p,
    Op.SQRT: _activation("sqrt"),
    Op.RSQRT: _activation("rsqrt"),
    Op.SIN: _language(nl.sin),
    Op.COS: _language(nl.cos),
    Op.TAN: _language(nl.tan),
    Op.SINH: _sinh,
    Op.COSH: _cosh,
    Op.TANH: _activation("tanh"),
    Op.ASIN: _asin,
    Op.ACOS: _acos,
    Op.ATAN: _atan,
    Op.ASINH: _asinh,
    Op.ACOSH: _acosh,
    Op.ATANH: _atanh,
    Op.ERF: _activation("erf"),
    Op.ERFC: _erfc,
    Op.NORMAL_CDF: _normal_cdf,
    Op.NORMAL_PDF: _normal_pdf,
    Op.LOGISTIC: _activation("sigmoid"),
    Op.NOT: _not,
    Op.POPCNT: _popcnt,
    Op.IS_FINITE: _is_finite,
    Op.IS_NAN: _is_nan,
}
