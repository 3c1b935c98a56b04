"""Functions that no engine has: by polynomials, and by the bits of floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import nki.isa as nisa
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import Emitter, NoLoweringError, Operand, Value
from nki.device.functions import absolute, rounded, tile32, typed

__all__ = ["digamma", "inverse_error_function", "log_gamma", "next_after"]

# erf_inv(x) / x by w = -log((1 - x) (1 + x)), for float32: of w - 2.5 for w below 5, else of
# sqrt(w) - 3; highest power first. Source: M. Giles, "Approximating the erfinv function" (2012).
_NEAR: Final = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_FAR: Final = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
_BETWEEN: Final = 5.0


def inverse_error_function(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return erf_inv(x): infinite at -1 and 1, NaN beyond."""
    x = tile32(e, operands[0])
    below = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(below, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    above = e.binary("add", x, 1.0, DType.F32)
    product = e.binary("multiply", Value(below, DType.F32, x.vector), above, DType.F32)
    w = e.binary("multiply", e.activation("log", product, DType.F32), -1.0, DType.F32)
    found = _polynomial(e, e.binary("add", w, -2.5, DType.F32), _NEAR)
    root = e.binary("add", e.activation("sqrt", w, DType.F32), -3.0, DType.F32)
    far = e.binary("greater_equal", w, _BETWEEN, DType.PRED)
    nisa.tensor_copy_predicated(found.tile, _polynomial(e, root, _FAR).tile, far.tile)
    # At 1 both polynomials are of infinity.
    one = e.binary("equal", absolute(e, typed(DType.F32), [x]), 1.0, DType.PRED)
    nisa.tensor_copy_predicated(found.tile, float("inf"), one.tile)
    return rounded(e, e.binary("multiply", found, x, DType.F32), node.dtype)


# By type, what the next number's bits differ by, as those of float32.
_WHOLE: Final = float(2**23)  # every float32 from here on is a whole number
_STEPS: Final = {DType.F32: 1, DType.BF16: 1 << 16}
_SIGN: Final = 1 << 31


def next_after(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return the number next to a on the way to b: its bits as an integer, and one more or less."""
    if node.dtype not in _STEPS:
        raise NoLoweringError(f"the numbers next to those of {node.dtype.value} are not known")
    step = _STEPS[node.dtype]
    vector = all(not isinstance(x, Value) or x.vector for x in operands)

    def copied(x: Operand) -> Value:
        made = e.new("float32", vector=vector)
        nisa.tensor_copy(made, e.shaped(tile32(e, x), "float32", vector=vector))
        return Value(made, DType.F32, vector)

    a, b = (copied(x) for x in operands)
    # Bits of positive numbers grow with them, those of negative ones shrink.
    up = e.binary("greater", b, a, DType.F32)
    grows = e.binary("equal", up, e.binary("greater", a, 0.0, DType.F32), DType.F32)
    way = e.new("float32", vector=vector)
    nisa.tensor_scalar(
        way, grows.tile, op0="multiply", operand0=2.0 * step, op1="add", operand1=-1.0 * step
    )
    bits = Value(a.tile.view("int32"), DType.S32, vector)
    moved = e.integer("add", bits, e.copied(Value(way, DType.F32, vector), DType.S32), DType.S32)
    found = Value(moved.tile.view("float32"), DType.F32, vector)
    # From zero it is the least number of b's sign.
    least = e.new("uint32", vector=vector)
    nisa.tensor_scalar(
        least, b.tile.view("uint32"), op0="bitwise_and", operand0=_SIGN,
        op1="bitwise_or", operand1=step,
    )  # fmt: skip
    for by, test, x, y in (
        (least.view("float32"), "equal", a, 0.0),
        (b.tile, "equal", a, b),
        (a.tile, "not_equal", a, a),
        (b.tile, "not_equal", b, b),
    ):
        nisa.tensor_copy_predicated(found.tile, by, e.binary(test, x, y, DType.PRED).tile)
    return rounded(e, found, node.dtype)


# Stirling's series (NIST DLMF 5.11): of log gamma in 1/z by 1/z^2, and of digamma in 1/z^2 after
# log z - 1/(2 z); highest power first. From 4 on the next term is less than 1e-8.
_OF_LOG_GAMMA: Final = (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_OF_DIGAMMA: Final = (1 / 240, -1 / 252, 1 / 120, -1 / 12)
_SHIFT: Final = 4


def log_gamma(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return log |gamma(x)|: by Stirling's series of x + 4 below 4, by reflection below 0.

    The error is one of a number of about 10 where the result is less, as next to 1 and 2.
    """
    x = tile32(e, operands[0])
    mirrored, y = _mirrored(e, x)
    near, z = _shifted(e, y)
    # (z - 1/2) (log z - 1) does not lose infinity.
    first = e.binary("add", z, -0.5, DType.F32)
    log = e.binary("add", e.activation("log", z, DType.F32), -1.0, DType.F32)
    found = e.binary("multiply", first, log, DType.F32)
    inverse, square = _inverse(e, z)
    series = e.binary("multiply", _polynomial(e, square, _OF_LOG_GAMMA), inverse, DType.F32)
    found = e.binary("add", found, series, DType.F32)
    found = e.binary("add", found, 0.5 * math.log(2 * math.pi) - 0.5, DType.F32)
    product = y
    for step in range(1, _SHIFT):
        product = e.binary("multiply", product, e.binary("add", y, step, DType.F32), DType.F32)
    less = e.binary("subtract", found, e.activation("log", product, DType.F32), DType.F32)
    nisa.tensor_copy_predicated(found.tile, less.tile, near.tile)
    # log(pi / |sin(pi x)|) - log gamma(1 - x)
    sine, _ = _of_turn(e, x)
    sine = absolute(e, typed(DType.F32), [sine])
    logs = e.activation("log", sine, DType.F32, scale=1 / math.pi)
    other = e.binary("multiply", e.binary("add", logs, found, DType.F32), -1.0, DType.F32)
    nisa.tensor_copy_predicated(found.tile, other.tile, mirrored.tile)
    least = e.binary("less", x, -_WHOLE, DType.PRED)  # all of these are whole numbers
    nisa.tensor_copy_predicated(found.tile, math.inf, least.tile)
    return rounded(e, found, node.dtype)


def digamma(e: Emitter, node: Node, operands: list[Operand]) -> Value:
    """Return the logarithmic derivative of gamma, likewise: NaN at negative whole numbers."""
    x = tile32(e, operands[0])
    mirrored, y = _mirrored(e, x)
    near, z = _shifted(e, y)
    inverse, square = _inverse(e, z)
    found = e.binary("multiply", inverse, -0.5, DType.F32)
    found = e.binary("add", found, e.activation("log", z, DType.F32), DType.F32)
    series = e.binary("multiply", _polynomial(e, square, _OF_DIGAMMA), square, DType.F32)
    found = e.binary("add", found, series, DType.F32)
    less = found
    for step in range(_SHIFT):
        below = e.binary("add", y, step, DType.F32) if step else y
        less = e.binary("subtract", less, e.activation("reciprocal", below, DType.F32), DType.F32)
    nisa.tensor_copy_predicated(found.tile, less.tile, near.tile)
    # digamma(1 - x) - pi / tan(pi x)
    sine, cosine = _of_turn(e, x)
    ratio = e.binary("multiply", cosine, e.activation("reciprocal", sine, DType.F32), DType.F32)
    ratio = e.binary("multiply", ratio, math.pi, DType.F32)
    other = e.binary("subtract", found, ratio, DType.F32)
    nisa.tensor_copy_predicated(found.tile, other.tile, mirrored.tile)
    # Poles: at 0 by its sign.
    pole = e.binary("multiply", e.activation("reciprocal", x, DType.F32), -1.0, DType.F32)
    zero = e.binary("equal", x, 0.0, DType.PRED)
    whole = e.binary("equal", sine, 0.0, DType.F32)
    whole = e.binary("multiply", whole, e.binary("less", x, 0.0, DType.F32), DType.F32)
    lost = e.binary("maximum", whole, e.binary("less", x, -_WHOLE, DType.F32), DType.PRED)
    nisa.tensor_copy_predicated(found.tile, math.nan, lost.tile)
    nisa.tensor_copy_predicated(found.tile, pole.tile, zero.tile)
    return rounded(e, found, node.dtype)


def _mirrored(e: Emitter, x: Value) -> tuple[Value, Value]:
    """Return where x is not above 0, and 1 - x there, else x."""
    where = e.binary("less_equal", x, 0.0, DType.PRED)
    made = e.copied(x, DType.F32)
    other = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(other, x.tile, op0="multiply", operand0=-1.0, op1="add", operand1=1.0)
    nisa.tensor_copy_predicated(made.tile, other, where.tile)
    return where, made


def _shifted(e: Emitter, y: Value) -> tuple[Value, Value]:
    """Return where y is below 4, and y + 4 there, else y."""
    where = e.binary("less", y, float(_SHIFT), DType.PRED)
    made = e.copied(y, DType.F32)
    more = e.binary("add", y, float(_SHIFT), DType.F32)
    nisa.tensor_copy_predicated(made.tile, more.tile, where.tile)
    return where, made


def _inverse(e: Emitter, z: Value) -> tuple[Value, Value]:
    """Return 1 / z and its square."""
    inverse = e.activation("reciprocal", z, DType.F32)
    return inverse, e.binary("multiply", inverse, inverse, DType.F32)


def _of_turn(e: Emitter, x: Value) -> tuple[Value, Value]:
    """Return sin(pi r) and cos(pi r) of what x is beyond the nearest whole number, r."""
    near = e.copied(e.copied(x, DType.S32), DType.F32)
    rest = e.binary("subtract", x, near, DType.F32)
    size = absolute(e, typed(DType.F32), [rest])
    left = e.new("float32", vector=x.vector)
    nisa.tensor_scalar(left, size.tile, op0="multiply", operand0=-1.0, op1="add", operand1=0.5)
    sine = e.activation("sin", rest, DType.F32, scale=math.pi)
    cosine = e.activation("sin", Value(left, DType.F32, x.vector), DType.F32, scale=math.pi)
    return sine, cosine


def _polynomial(e: Emitter, x: Value, factors: Sequence[float]) -> Value:
    """Return a polynomial by Horner's rule, an instruction of Vector for each power."""
    total = e.binary("multiply", x, factors[0], DType.F32)
    for factor in factors[1:-1]:
        made = e.new("float32", vector=x.vector)
        nisa.scalar_tensor_tensor(
            made, data=total.tile, op0="add", operand0=factor, op1="multiply", operand1=x.tile
        )
        total = Value(made, DType.F32, x.vector)
    return e.binary("add", total, factors[-1], DType.F32)
