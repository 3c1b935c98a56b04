"""Elementwise operators of the tensor IR as instructions: a table of functions.

Each takes the emitter, the node and its operands' values, and returns the node's value, rounded to
its type as the operator's meaning says. Floats are computed in float32. Integers of 32 bits and
more are computed by GpSimd, which is exact and wraps; 64-bit integers by their low 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from nki.device.emitter import Emitter, NoLoweringError, Operand, Value
from nki.device.types import HELD, INTEGERS32
from nki.dtypes import info

__all__ = ["POINTWISE", "emit"]

Emit = Callable[[Emitter, Node, list[Operand]], Value]
_WHOLE = float(2**23)  # every float32 from here on is a whole number


def emit(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return the value of an elementwise operator.

    Raises:
        NoLoweringError: no instructions give it.
    """
    return POINTWISE[node.op](e, node, operands)


# --- of one operand ------------------------------------------------------------------------------


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
        x = _tile32(e, operands[0])
        return _rounded(e, Value(function(x.tile), DType.F32, x.vector), node.dtype)

    return made


def _tile32(e: Emitter, x: Operand) -> Value:
    """Return a value in a float32 tile of its own in SBUF."""
    if isinstance(x, Value) and x.tile.dtype == "float32":
        return Value(e.on_sbuf(x.tile), DType.F32, x.vector)
    return e.copied(x, DType.F32, vector=True)


def _rounded(e: Emitter, x: Value, dtype: DType) -> Value:
    if x.tile.dtype == HELD[dtype]:
        return Value(x.tile, dtype, x.vector)
    return e.copied(x, dtype)


def _abs(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    (x,) = operands
    if node.dtype in INTEGERS32:
        return e.integer("maximum", x, e.integer("subtract", 0, x, node.dtype), node.dtype)
    if node.dtype.is_integer:
        return _by_integers(e, node, "maximum", x, e.integer("subtract", 0, x, node.dtype))
    x = _value(e, x)
    made = e.new(node.dtype, vector=x.vector)
    nisa.tensor_scalar(made, x.tile, op0="abs", operand0=None)
    return Value(made, node.dtype, x.vector)


def _value(e: Emitter, x: Operand) -> Value:
    return x if isinstance(x, Value) else e.copied(x, DType.F32, vector=True)


def _by_integers(e: Emitter, node: Node, op: str, a: Operand, b: Operand) -> Value:
    return e.integer(op, a, b, node.dtype)


def _negate(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    if node.dtype.is_integer:
        return e.integer("subtract", 0, operands[0], node.dtype)
    return e.binary("multiply", _value(e, operands[0]), -1.0, node.dtype)


def _sign(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    if node.dtype in INTEGERS32:
        (x,) = operands
        above = e.integer("greater", x, 0, node.dtype)
        return e.integer("subtract", above, e.integer("less", x, 0, node.dtype), node.dtype)
    return e.activation("sign", operands[0], node.dtype)


def _round_even(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = _tile32(e, operands[0])
    near = e.copied(e.copied(x, DType.S32), DType.F32)
    small = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(small, x.tile, op0="abs", operand0=None, op1="less", operand1=_WHOLE)
    made = e.copied(x, DType.F32)
    nisa.tensor_copy_predicated(made.tile, near.tile, small)
    return _rounded(e, made, node.dtype)


def _expm1(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """e**x - 1 = 2 t / (1 - t) with t = tanh(x / 2), which is exact near 0; else exp(x) - 1."""
    x = _tile32(e, operands[0])
    t = e.activation("tanh", x, DType.F32, scale=0.5)
    below = e.activation("reciprocal", e.binary("subtract", 1.0, t, DType.F32), DType.F32)
    near = e.binary("multiply", e.binary("multiply", t, 2.0, DType.F32), below, DType.F32)
    far = e.binary("subtract", e.activation("exp", x, DType.F32), 1.0, DType.F32)
    small = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(small, x.tile, op0="abs", operand0=None, op1="less", operand1=0.5)
    nisa.tensor_copy_predicated(far.tile, near.tile, small)
    return _rounded(e, far, node.dtype)


def _log1p(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log(u) x / (u - 1) with u = 1 + x rounded: the error of u is divided out; x where u is 1."""
    x = _tile32(e, operands[0])
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
    return _rounded(e, found, node.dtype)


def _sinh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """(m + m / (m + 1)) / 2 with m = expm1(|x|), and the sign of x."""
    x = _tile32(e, operands[0])
    m = _expm1(e, _typed(DType.F32), [_abs(e, _typed(DType.F32), [x])])
    inverse = e.activation("reciprocal", e.binary("add", m, 1.0, DType.F32), DType.F32)
    ratio = e.binary("multiply", m, inverse, DType.F32)
    # m / (m + 1) is 1 where m is infinite.
    huge = e.new("uint8", vector=x.vector)
    nisa.tensor_scalar(huge, m.tile, op0="greater", operand0=1e30)
    nisa.tensor_copy_predicated(ratio.tile, 1.0, huge)
    total = e.binary("add", m, ratio, DType.F32)
    half = e.binary("multiply", total, 0.5, DType.F32)
    return e.binary("multiply", half, e.activation("sign", x, DType.F32), node.dtype)


def _typed(dtype: DType) -> Node:
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


def _atan_of(e: Emitter, x: Value) -> Value:
    """Return arctan in float32: the Scalar Engine's is documented from -pi/2 to pi/2."""
    size = _abs(e, _typed(DType.F32), [x])
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
    return _rounded(e, _atan_of(e, _tile32(e, operands[0])), node.dtype)


def _root_of_rest(e: Emitter, x: Value) -> Value:
    """sqrt((1 - x) (1 + x))."""
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    above = e.binary("add", x, 1.0, DType.F32)
    product = e.binary("multiply", Value(below, DType.F32, x.vector), above, DType.F32)
    return e.activation("sqrt", product, DType.F32)


def _asin(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """arctan(x / sqrt(1 - x x)); infinite ratios give pi / 2."""
    x = _tile32(e, operands[0])
    inverse = e.activation("reciprocal", _root_of_rest(e, x), DType.F32)
    return _rounded(e, _atan_of(e, e.binary("multiply", x, inverse, DType.F32)), node.dtype)


def _acos(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """2 arctan(sqrt(1 - x) / sqrt(1 + x))."""
    x = _tile32(e, operands[0])
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    over = e.activation("sqrt", Value(below, DType.F32, x.vector), DType.F32)
    under = e.activation("sqrt", x, DType.F32, bias=1.0)
    ratio = e.binary("multiply", over, e.activation("reciprocal", under, DType.F32), DType.F32)
    return e.binary("multiply", _atan_of(e, ratio), 2.0, node.dtype)


def _asinh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """sign(x) log1p(|x| + x x / (1 + sqrt(x x + 1))); log(2 |x|) where x x is too large."""
    x = _tile32(e, operands[0])
    size = _abs(e, _typed(DType.F32), [x])
    square = e.binary("multiply", size, size, DType.F32)
    under = e.binary("add", e.activation("sqrt", square, DType.F32, bias=1.0), 1.0, DType.F32)
    ratio = e.binary("multiply", square, e.activation("reciprocal", under, DType.F32), DType.F32)
    found = _log1p(e, _typed(DType.F32), [e.binary("add", size, ratio, DType.F32)])
    _replace_large(e, found, size)
    return e.binary("multiply", found, e.activation("sign", x, DType.F32), node.dtype)


def _replace_large(e: Emitter, found: Value, size: Value) -> None:
    large = e.new("uint8", vector=size.vector)
    nisa.tensor_scalar(large, size.tile, op0="greater", operand0=1e15)
    far = e.binary("add", e.activation("log", size, DType.F32), math.log(2), DType.F32)
    nisa.tensor_copy_predicated(found.tile, far.tile, large)


def _acosh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; log(2 x) where that is too large."""
    x = _tile32(e, operands[0])
    t = e.binary("subtract", x, 1.0, DType.F32)
    product = e.binary("multiply", t, e.binary("add", x, 1.0, DType.F32), DType.F32)
    root = e.activation("sqrt", product, DType.F32)
    found = _log1p(e, _typed(DType.F32), [e.binary("add", t, root, DType.F32)])
    _replace_large(e, found, x)
    return _rounded(e, found, node.dtype)


def _atanh(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """log1p(2 |x| / (1 - |x|)) / 2, and the sign of x."""
    x = _tile32(e, operands[0])
    size = _abs(e, _typed(DType.F32), [x])
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, size.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    inverse = e.activation("reciprocal", Value(below, DType.F32, x.vector), DType.F32)
    ratio = e.binary("multiply", e.binary("multiply", size, 2.0, DType.F32), inverse, DType.F32)
    half = e.binary("multiply", _log1p(e, _typed(DType.F32), [ratio]), 0.5, DType.F32)
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
    x = _integers(e, operands[0], node.dtype)
    made = e.new(node.dtype, vector=x.vector)
    if node.dtype is DType.PRED:
        nisa.tensor_scalar(made, x.tile, op0="bitwise_xor", operand0=1)
    else:
        nisa.tensor_scalar(made, x.tile, op0="invert", operand0=None)
    return Value(made, node.dtype, x.vector)


def _integers(e: Emitter, x: Operand, dtype: DType) -> Value:
    return x if isinstance(x, Value) else e.copied(x, dtype, vector=True)


def _exactly(e: Emitter, x: Operand, dtype: DType) -> Value:
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
    x = _tile32(e, operands[0])
    made = e.new(node.dtype, vector=x.vector)
    nisa.tensor_scalar(made, x.tile, op0="abs", operand0=None, op1="less", operand1=math.inf)
    return Value(made, node.dtype, x.vector)


def _is_nan(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = _value(e, operands[0])
    return e.binary("not_equal", x, x, node.dtype)


def _convert(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    (x,) = operands
    source, target = node.srcs[0].dtype, node.dtype
    if not isinstance(x, Value):
        return e.copied(x, target, vector=True)
    if target is DType.PRED:
        return e.binary("not_equal", x, 0.0, target)
    if target.is_integer and source.is_float:
        x = _tile32(e, x)
        x = Value(nl.trunc(x.tile), DType.F32, x.vector)
        return e.copied(x, target)
    if target.is_integer and target.itemsize < min(source.itemsize, 4):
        return e.narrowed(x, target)
    widens = source.is_float and target is DType.F32  # engines convert what they read
    if widens or x.tile.dtype == HELD[target]:
        return Value(x.tile, target, x.vector)
    return e.copied(x, target)


def _bitcast(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = _exactly(e, operands[0], node.srcs[0].dtype)
    if node.dtype.itemsize > 4:
        raise NoLoweringError("elements of 64 bits are not reinterpreted by any engine")
    tile = e.on_sbuf(x.tile)
    return Value(tile.view(HELD[node.dtype]), node.dtype, x.vector)


#: Formats of `reduce_precision` that are a type of tiles.
_FORMATS: Final = {(8, 7): "bfloat16", (5, 2): "float8_e5m2"}


def _reduce_precision(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Rounds the bits of float32: adds half of the last kept bit, ties to even, and cuts off."""
    exponent, mantissa = node["exponent_bits"], node["mantissa_bits"]
    if exponent < 8 or mantissa >= 23:
        raise NoLoweringError(f"no engine rounds to {exponent} bits of exponent")
    x = _tile32(e, operands[0])
    drop = 23 - mantissa
    bits = x.tile.view("uint32")

    def step(tile: Any, op: str, number: int, *, exact: bool = False) -> Any:
        made = e.new("uint32", vector=x.vector)
        if exact:
            other = e.filled(number, "uint32", vector=x.vector)
            nisa.tensor_tensor(made, tile, other, op=op)
        else:
            nisa.tensor_scalar(made, tile, op0=op, operand0=number)
        return made

    last = step(step(bits, "right_shift", drop), "bitwise_and", 1)
    half = step(last, "add", (1 << (drop - 1)) - 1, exact=True)
    total = e.new("uint32", vector=x.vector)
    nisa.tensor_tensor(total, bits, half, op="add")
    kept = step(total, "bitwise_and", 0xFFFFFFFF & ~((1 << drop) - 1))
    made = Value(kept.view("float32"), DType.F32, x.vector)
    wrong = e.binary("not_equal", x, x, DType.PRED)
    nisa.tensor_copy_predicated(made.tile, x.tile, wrong.tile)
    return _rounded(e, made, node.dtype)


# --- of two operands -----------------------------------------------------------------------------


def _arithmetic(op: str) -> Emit:
    def made(e: Emitter, node: Node, operands: list[Operand]) -> Value:
        if node.dtype.is_integer:
            return e.integer(op, operands[0], operands[1], node.dtype)
        return e.binary(op, operands[0], operands[1], node.dtype)

    return made


def _divide(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    a, b = operands
    if node.dtype.is_integer:
        return _integer_quotient(e, node, a, b)
    if not isinstance(b, Value):
        with np.errstate(all="ignore"):
            return e.binary("multiply", a, float(np.float32(1) / np.float32(b)), node.dtype)
    inverse = e.new("float32", vector=b.vector)
    nisa.reciprocal(inverse, b.tile)
    return e.binary("multiply", a, Value(inverse, DType.F32, b.vector), node.dtype)


_EXACT = 1 << 22  # quotients up to here are found exactly by way of float32


def _integer_quotient(e: Emitter, node: Node, a: Operand, b: Operand) -> Value:
    """Return the quotient toward zero: one of float32, put right by its remainder.

    Exact where the quotient is below 2**22.
    """
    dtype = DType.S32
    x = e.integer("add", a, 0, dtype)
    y = e.integer("add", b, 0, dtype)
    over, under = (e.integer("maximum", v, e.integer("subtract", 0, v, dtype), dtype)
                   for v in (x, y))  # fmt: skip
    inverse = e.new("float32", vector=under.vector)
    nisa.reciprocal(inverse, e.copied(under, DType.F32).tile)
    near = e.binary(
        "multiply", e.copied(over, DType.F32), Value(inverse, DType.F32, under.vector), DType.F32
    )
    q = Value(e.copied(near, dtype).tile, dtype, near.vector)
    rest = e.integer("subtract", over, e.integer("multiply", q, under, dtype), dtype)
    q = e.integer("subtract", q, e.integer("less", rest, 0, dtype), dtype)
    rest = e.integer("subtract", over, e.integer("multiply", q, under, dtype), dtype)
    q = e.integer("add", q, e.integer("greater_equal", rest, under, dtype), dtype)
    signs = e.integer("multiply", _sign(e, _typed(dtype), [x]), _sign(e, _typed(dtype), [y]), dtype)
    return e.integer("multiply", q, signs, node.dtype)


def _remainder(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    if node.dtype.is_integer:
        quotient = _integer_quotient(e, _typed(DType.S32), operands[0], operands[1])
        product = e.integer("multiply", quotient, operands[1], DType.S32)
        return e.integer("subtract", operands[0], product, node.dtype)
    a, b = (_tile32(e, x) for x in operands)
    vector = a.vector and b.vector
    tiles = [e.shaped(x, "float32", vector=vector) for x in (a, b)]
    return _rounded(e, Value(nl.fmod(*_dense(tiles)), DType.F32, vector), node.dtype)


def _dense(tiles: list[Any]) -> list[Any]:
    """Return copies of broadcast tiles."""
    found = []
    for tile in tiles:
        if tile.is_contiguous():
            found.append(tile)
            continue
        made = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(made, tile)
        found.append(made)
    return found


def _power(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    a, b = operands
    if node.dtype.is_integer:
        raise NoLoweringError("no engine raises integers to powers exactly", "NCC_EVRF062")
    if not isinstance(b, Value):
        if b == 2:
            return e.activation("square", a, node.dtype)
        if b == 0.5:
            return e.activation("sqrt", a, node.dtype)
        return e.binary("power", _value(e, a), float(b), node.dtype)
    vector = b.vector and (not isinstance(a, Value) or a.vector)
    made = e.new(node.dtype, vector=vector)
    tiles = [e.on_sbuf(e.shaped(x, "float32", vector=vector)) for x in (a, b)]
    nisa.tensor_tensor(made, *tiles, op="power")
    return Value(made, node.dtype, vector)


def _atan2(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """arctan(|y| / |x|), on the other side where x is negative, and the sign of y."""
    vector = all(not isinstance(v, Value) or v.vector for v in operands)
    y, x = (
        Value(_dense([e.shaped(_tile32(e, v), "float32", vector=vector)])[0], DType.F32, vector)
        for v in operands
    )
    size_y, size_x = (_abs(e, _typed(DType.F32), [v]) for v in (y, x))
    inverse = e.activation("reciprocal", size_x, DType.F32)
    ratio = e.binary("multiply", size_y, inverse, DType.F32)

    def replaced(value: Value, by: Any, test: str, a: Operand, b: Operand) -> None:
        chosen = e.binary(test, a, b, DType.PRED)
        nisa.tensor_copy_predicated(value.tile, by, chosen.tile)

    replaced(ratio, 1.0, "equal", size_y, size_x)  # two infinities
    replaced(ratio, 0.0, "equal", size_y, 0.0)
    angle = _atan_of(e, ratio)
    other = e.new("float32", vector=vector)
    nisa.tensor_scalar(
        other, angle.tile, op0="multiply", operand0=-1.0, op1="add", operand1=math.pi
    )
    negative = e.new("uint32", vector=vector)
    nisa.tensor_scalar(negative, x.tile.view("uint32"), op0="right_shift", operand0=31)
    nisa.tensor_copy_predicated(angle.tile, other, negative)
    for v in (x, y):
        replaced(angle, v.tile, "not_equal", v, v)
    return _rounded(e, _copysign(e, _typed(DType.F32), [angle, y]), node.dtype)


def _copysign(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    size = 8 * node.dtype.itemsize
    if size not in (16, 32):
        raise NoLoweringError("signs of 8-bit floats are not copied")
    kind = f"uint{size}"
    a, b = (_exactly(e, x, node.dtype) for x in operands)
    vector = a.vector and b.vector
    tiles = []
    for x, mask in ((a, (1 << (size - 1)) - 1), (b, 1 << (size - 1))):
        made = e.new(kind, vector=x.vector)
        nisa.tensor_scalar(made, e.on_sbuf(x.tile).view(kind), op0="bitwise_and", operand0=mask)
        tiles.append(e.shaped(Value(made, node.dtype, x.vector), kind, vector=vector))
    result = e.new(kind, vector=vector)
    nisa.tensor_tensor(result, *tiles, op="bitwise_or")
    return Value(result.view(HELD[node.dtype]), node.dtype, vector)


def _bits(op: str) -> Emit:
    def made(e: Emitter, node: Node, operands: list[Operand]) -> Value:
        kind = HELD[node.dtype]
        vector = all(not isinstance(x, Value) or x.vector for x in operands)
        tiles = [e.shaped(x, node.dtype, vector=vector) for x in operands]
        result = e.new(kind, vector=vector)
        nisa.tensor_tensor(result, *tiles, op=op)
        return Value(result, node.dtype, vector)

    return made


def _shift_arithmetic(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Shift what is negative as its complement, which is not negative."""
    vector = all(not isinstance(x, Value) or x.vector for x in operands)
    kind = HELD[node.dtype]
    bits = 8 * info(kind).itemsize
    x, n = (e.shaped(v, node.dtype, vector=vector) for v in operands)
    x = e.on_sbuf(x)

    def new() -> Any:
        return e.new(kind, vector=vector)

    sign = new()
    # All bits are those of the sign: 0 - (x >> (bits - 1)).
    nisa.tensor_scalar(sign, x, op0="right_shift", operand0=bits - 1)
    ones = new()
    nisa.tensor_scalar(ones, sign, op0="multiply", operand0=-1.0)
    flipped, moved, result = new(), new(), new()
    nisa.tensor_tensor(flipped, x, ones, op="bitwise_xor")
    nisa.tensor_tensor(moved, flipped, n, op="right_shift")
    nisa.tensor_tensor(result, moved, ones, op="bitwise_xor")
    return Value(result, node.dtype, vector)


_COMPARISONS: Final = {
    "EQ": "equal",
    "NE": "not_equal",
    "LT": "less",
    "LE": "less_equal",
    "GT": "greater",
    "GE": "greater_equal",
}


def _compare(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    op = _COMPARISONS[node["direction"]]
    source = node.srcs[0].dtype
    if source in INTEGERS32:
        return e.copied(e.integer(op, operands[0], operands[1], DType.S32), DType.PRED)
    return e.binary(op, operands[0], operands[1], DType.PRED)


def _select(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    chosen, on_true, on_false = operands
    vector = all(not isinstance(x, Value) or x.vector for x in operands)
    kind = HELD[node.dtype]
    made = e.new(kind, vector=vector)
    if isinstance(on_false, Value):
        nisa.tensor_copy(made, e.shaped(on_false, kind, vector=vector))
    else:
        nisa.memset(made, on_false if kind.startswith(("float", "bf")) else int(on_false))
    predicate = e.shaped(chosen, DType.PRED, vector=vector)
    if isinstance(on_true, Value) or kind in ("int32", "uint32"):
        new = e.shaped(on_true, kind, vector=vector)
        if new.dtype != kind:
            new = e.shaped(e.copied(on_true, node.dtype), kind, vector=vector)
        nisa.tensor_copy_predicated(made, new, predicate)
    else:
        nisa.tensor_copy_predicated(made, float(on_true), predicate)
    return Value(made, node.dtype, vector)


def _clamp(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    low, x, high = operands
    if node.dtype.is_integer:
        return e.integer("minimum", e.integer("maximum", x, low, node.dtype), high, node.dtype)
    return e.binary("minimum", e.binary("maximum", x, low, node.dtype), high, node.dtype)


def _none(reason: str) -> Emit:
    def refuse(e: Emitter, node: Node, operands: list[Operand]) -> Value:
        del e, operands
        raise NoLoweringError(f"{reason} ({node.op.value})")

    return refuse


_NO_FUNCTION: Final = "no engine has this function"

#: By operator; those without instructions say why.
POINTWISE: Final[Mapping[Op, Emit]] = {
    Op.ABS: _abs,
    Op.NEGATE: _negate,
    Op.SIGN: _sign,
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
    Op.ERFINV: _none(_NO_FUNCTION),
    Op.NORMAL_CDF: _normal_cdf,
    Op.NORMAL_PDF: _normal_pdf,
    Op.LGAMMA: _none(_NO_FUNCTION),
    Op.DIGAMMA: _none(_NO_FUNCTION),
    Op.LOGISTIC: _activation("sigmoid"),
    Op.NOT: _not,
    Op.POPCNT: _popcnt,
    Op.CONJ: _none("no engine computes with complex numbers"),
    Op.IS_FINITE: _is_finite,
    Op.IS_NAN: _is_nan,
    Op.REAL: _none("no engine computes with complex numbers"),
    Op.IMAG: _none("no engine computes with complex numbers"),
    Op.CONVERT: _convert,
    Op.BITCAST_CONVERT: _bitcast,
    Op.REDUCE_PRECISION: _reduce_precision,
    Op.ADD: _arithmetic("add"),
    Op.SUBTRACT: _arithmetic("subtract"),
    Op.MULTIPLY: _arithmetic("multiply"),
    Op.DIVIDE: _divide,
    Op.REMAINDER: _remainder,
    Op.POWER: _power,
    Op.MAXIMUM: _arithmetic("maximum"),
    Op.MINIMUM: _arithmetic("minimum"),
    Op.ATAN2: _atan2,
    Op.NEXTAFTER: _none(_NO_FUNCTION),
    Op.COPYSIGN: _copysign,
    Op.AND: _bits("bitwise_and"),
    Op.OR: _bits("bitwise_or"),
    Op.XOR: _bits("bitwise_xor"),
    Op.SHIFT_LEFT: _bits("left_shift"),
    Op.SHIFT_RIGHT_LOGICAL: _bits("right_shift"),
    Op.SHIFT_RIGHT_ARITHMETIC: _shift_arithmetic,
    Op.COMPLEX: _none("no engine computes with complex numbers"),
    Op.COMPARE: _compare,
    Op.SELECT: _select,
    Op.CLAMP: _clamp,
}
