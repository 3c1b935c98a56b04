"""Elementwise operators of the tensor IR as instructions: a table of functions.

Each takes the emitter, the node and its operands' values, and returns the node's value, rounded to
its type as the operator's meaning says. Floats are computed in float32. Integers of 32 bits and
more are computed by GpSimd, which is exact and wraps; 64-bit integers by their low 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.emitter import Emitter, NoLoweringError, Operand, Value, near
from nki.device.functions import (
    FUNCTIONS,
    Emit,
    absolute,
    arctan,
    as_value,
    exactly,
    rounded,
    sign,
    tile32,
    typed,
)
from nki.device.special import digamma, inverse_error_function, log_gamma, next_after
from nki.device.types import HELD, INTEGERS32
from nki.dtypes import info

__all__ = ["POINTWISE", "emit"]


def emit(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return the value of an elementwise operator.

    Raises:
        NoLoweringError: no instructions give it.
    """
    return POINTWISE[node.op](e, node, operands)


def _convert(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    (x,) = operands
    source, target = node.srcs[0].dtype, node.dtype
    if not isinstance(x, Value):
        return e.copied(x, target, vector=True)
    if target is DType.PRED:
        return e.binary("not_equal", x, 0.0, target)
    if target.is_integer and source.is_float:
        x = tile32(e, x)
        x = Value(nl.trunc(x.tile), DType.F32, x.vector)
        return e.copied(x, target)
    if target.is_integer and target.itemsize < min(source.itemsize, 4):
        return e.narrowed(x, target)
    widens = source.is_float and target is DType.F32  # engines convert what they read
    if widens or x.tile.dtype == HELD[target]:
        return Value(x.tile, target, x.vector)
    return e.copied(x, target)


def _bitcast(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    x = exactly(e, operands[0], node.srcs[0].dtype)
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
    x = tile32(e, operands[0])
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
    return rounded(e, made, node.dtype)


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
    signs = e.integer("multiply", sign(e, typed(dtype), [x]), sign(e, typed(dtype), [y]), dtype)
    return e.integer("multiply", q, signs, node.dtype)


def _remainder(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    if node.dtype.is_integer:
        quotient = _integer_quotient(e, typed(DType.S32), operands[0], operands[1])
        product = e.integer("multiply", quotient, operands[1], DType.S32)
        return e.integer("subtract", operands[0], product, node.dtype)
    a, b = (tile32(e, x) for x in operands)
    vector = a.vector and b.vector
    tiles = [e.shaped(x, "float32", vector=vector) for x in (a, b)]
    return rounded(e, Value(nl.fmod(*_dense(tiles)), DType.F32, vector), node.dtype)


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
        return e.binary("power", as_value(e, a), float(b), node.dtype)
    vector = b.vector and (not isinstance(a, Value) or a.vector)
    made = e.new(node.dtype, vector=vector)
    tiles = [e.on_sbuf(e.shaped(x, "float32", vector=vector)) for x in (a, b)]
    nisa.tensor_tensor(made, *tiles, op="power")
    return Value(made, node.dtype, vector)


def _atan2(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """arctan(|y| / |x|), on the other side where x is negative, and the sign of y."""
    vector = all(not isinstance(v, Value) or v.vector for v in operands)
    y, x = (
        Value(_dense([e.shaped(tile32(e, v), "float32", vector=vector)])[0], DType.F32, vector)
        for v in operands
    )
    size_y, size_x = (absolute(e, typed(DType.F32), [v]) for v in (y, x))
    inverse = e.activation("reciprocal", size_x, DType.F32)
    ratio = e.binary("multiply", size_y, inverse, DType.F32)

    def replaced(value: Value, by: Any, test: str, a: Operand, b: Operand) -> None:
        chosen = e.binary(test, a, b, DType.PRED)
        nisa.tensor_copy_predicated(value.tile, by, chosen.tile)

    replaced(ratio, 1.0, "equal", size_y, size_x)  # two infinities
    replaced(ratio, 0.0, "equal", size_y, 0.0)
    angle = arctan(e, ratio)
    other = e.new("float32", vector=vector)
    nisa.tensor_scalar(
        other, angle.tile, op0="multiply", operand0=-1.0, op1="add", operand1=math.pi
    )
    negative = e.new("uint32", vector=vector)
    nisa.tensor_scalar(negative, x.tile.view("uint32"), op0="right_shift", operand0=31)
    nisa.tensor_copy_predicated(angle.tile, other, negative)
    for v in (x, y):
        replaced(angle, v.tile, "not_equal", v, v)
    return rounded(e, _copysign(e, typed(DType.F32), [angle, y]), node.dtype)


def _copysign(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    size = 8 * node.dtype.itemsize
    if size not in (16, 32):
        raise NoLoweringError("signs of 8-bit floats are not copied")
    kind = f"uint{size}"
    a, b = (exactly(e, x, node.dtype) for x in operands)
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
    chosen, *sides = operands
    on_true, on_false = (x if isinstance(x, Value) else near(x, node.dtype) for x in sides)
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


#: By operator; those without instructions say why.
POINTWISE: Final[Mapping[Op, Emit]] = {
    **FUNCTIONS,
    Op.ERFINV: inverse_error_function,
    Op.LGAMMA: log_gamma,
    Op.DIGAMMA: digamma,
    Op.CONJ: _none("no engine computes with complex numbers"),
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
    Op.NEXTAFTER: next_after,
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
