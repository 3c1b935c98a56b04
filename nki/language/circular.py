"""Sine, cosine and tangent of any angle.

The Scalar Engine's sine reduces no argument: it is good from -pi to pi. The documentation says that
`nl.sin` reduces it first, with more instructions, and does not say how. Here an angle x becomes
r = x - h * pi, where h is the whole number nearest to x / pi for the sine, and the odd half nearest
to it for the cosine. Then the function is sin(r) or -sin(r), and r lies around 0 wherever the
function does, so that its relative error stays small there too.

The engines compute in float32 and do not fuse a product with a sum, so pi is given in pieces of 12
bits and h as the sum of two numbers of at most 12 bits: their products are exact, and so is every
difference before the last pieces, because what is left then has no more than 24 bits.
"""

import math
from fractions import Fraction
from typing import Final

import numpy as np

from nki.isa.functions import FUNCTIONS
from nki.language.tiles import new
from nki.tensor import NkiTensor

__all__ = ["LARGEST", "cosine", "sine", "tangent"]

LARGEST: Final = 2.0**23
"""The largest angle that is reduced: from here on float32 has whole numbers only, which is less
than an angle needs."""

_PI: Final = Fraction("3.14159265358979323846264338327950288419716939937510")
# h is a multiple of this, of 2**23 / pi at most, and at most half of this with its sign.
_UNIT: Final = 2.0**11
_BELOW_PI: Final = float(np.nextafter(np.float32(math.pi), np.float32(0)))


def _pieces(value: Fraction, count: int, bits: int) -> tuple[float, ...]:
    """Return numbers of `bits` bits that add up to a value, and float32 of what is left."""
    found = []
    for _ in range(count):
        unit = Fraction(2) ** (math.frexp(float(value))[1] - bits)
        piece = value // unit * unit
        found.append(float(piece))
        value -= piece
    return *found, float(np.float32(float(value)))


_PI_PIECES: Final = _pieces(_PI, 3, 12)


def _reduced(x: NkiTensor, offset: float) -> tuple[NkiTensor, NkiTensor]:
    """Return n in int32 and x - (n + offset) * pi in float32, with n such that this is smallest.

    Args:
        x: angles of any type.
        offset: 0 or 0.5.
    """
    # Writing int32 rounds to the nearest.
    n, high = new(x.shape, "int32"), new(x.shape, "int32")
    FUNCTIONS["tensor_scalar"](n, x, "multiply", 1 / math.pi, op1="subtract", operand1=offset)
    FUNCTIONS["tensor_scalar"](high, n, "multiply", 1 / _UNIT)
    low, rest = new(x.shape, "float32"), new(x.shape, "float32")
    FUNCTIONS["scalar_tensor_tensor"](low, high, "multiply", -_UNIT, "add", n)
    if offset:
        FUNCTIONS["tensor_scalar"](low, low, "add", offset)
    left = x
    for piece in _PI_PIECES:
        for part, factor in ((high, -_UNIT * piece), (low, -piece)):
            FUNCTIONS["scalar_tensor_tensor"](rest, part, "multiply", factor, "add", left)
            left = rest
    # Of angles beyond the largest anything may be left, which the engine's sine must not see.
    FUNCTIONS["tensor_scalar"](rest, rest, "minimum", _BELOW_PI, op1="maximum", operand1=-_BELOW_PI)
    return n, rest


def _alternating(n: NkiTensor, rest: NkiTensor, out: NkiTensor, sign: float) -> None:
    """Write ``sign * (-1)**n * sin(rest)``; signs are bit 31, and n is odd where bit 0 is set."""
    FUNCTIONS["tensor_scalar"](n, n, "left_shift", 31)
    bits = rest.view("int32")
    FUNCTIONS["tensor_tensor"](bits, bits, n, "bitwise_xor")
    FUNCTIONS["activation"](out, "sin", rest, scale=sign)


def sine(x: NkiTensor, out: NkiTensor) -> None:
    """Issue the instructions that write the sine of a tile of angles."""
    n, rest = _reduced(x, 0.0)
    _alternating(n, rest, out, 1.0)


def cosine(x: NkiTensor, out: NkiTensor) -> None:
    """Issue those for the cosine: cos(r + (n + 1/2) * pi) = -sin(r + n * pi)."""
    n, rest = _reduced(x, 0.5)
    _alternating(n, rest, out, -1.0)


def tangent(x: NkiTensor, out: NkiTensor) -> None:
    """Issue those for the tangent, which is the sine by the cosine."""
    over, under = new(x.shape, "float32"), new(x.shape, "float32")
    sine(x, over)
    cosine(x, under)
    FUNCTIONS["reciprocal"](under, under)
    FUNCTIONS["tensor_tensor"](out, over, under, "multiply")
