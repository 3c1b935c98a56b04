"""The meanings of the operators of NKI's ALUs, in NumPy: the one table of them.

Arithmetic works on float32, or on int64 holding 32-bit integers where an engine computes with
integers; operators of bits work on unsigned integers. Comparisons and logical operators give 1 and
0 in the type they compare. Operators of one number ignore the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from neuronxcc.ir.arithmetic import Array, maximum, minimum

__all__ = ["CUMULATIVE", "MEANINGS", "SCANNED", "Binary"]

Binary = Callable[[Array, Array], Array]


def _truth(function: Binary) -> Binary:
    def numbers(x: Array, y: Array) -> Array:
        return function(x, y).astype(np.result_type(x, y))

    return numbers


def _shift(function: Binary) -> Binary:
    def shifted(x: Array, y: Array) -> Array:
        bits = 8 * x.dtype.itemsize
        inside = function(x, np.minimum(y, bits - 1).astype(x.dtype))
        # Logical shifts: all bits are gone at the width, where C and NumPy leave it undefined.
        return np.where(y >= bits, x.dtype.type(0), inside)

    return shifted


def _larger(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) > np.abs(y), x, y)  # a tie gives y, as documented


def _smaller(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) < np.abs(y), x, y)


def _via_float64(function: Callable[[Array], Array]) -> Binary:
    def rounded_once(x: Array, y: Array) -> Array:
        del y
        return function(x.astype(np.float64)).astype(np.float32)

    return rounded_once


def _power(x: Array, y: Array) -> Array:
    return np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)


# Those that scans have, of float32: the number of one in a file is its place here, which `Alu` in
# torch_neuronx/csrc/nki/scan_impl.h repeats.
_SCANNED: Mapping[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": maximum,
    "minimum": minimum,
    "equal": _truth(np.equal),
    "not_equal": _truth(np.not_equal),
    "greater_equal": _truth(np.greater_equal),
    "greater": _truth(np.greater),
    "less_equal": _truth(np.less_equal),
    "less": _truth(np.less),
    "logical_and": _truth(np.logical_and),
    "logical_or": _truth(np.logical_or),
    "logical_xor": _truth(np.logical_xor),
    "power": _power,
    "abs_max": _larger,
    "abs_min": _smaller,
}
SCANNED = tuple(_SCANNED)
CUMULATIVE = 5  # the first so many are those that cumulate takes
MEANINGS: Mapping[str, Binary] = MappingProxyType(
    {
        **_SCANNED,
        "invert": lambda x, _: np.invert(x),
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
        "left_shift": _shift(np.left_shift),
        "right_shift": _shift(np.right_shift),
        "abs": lambda x, _: np.abs(x),
        "square": lambda x, _: x * x,
        "relu": lambda x, _: maximum(x, np.zeros_like(x)),
        "rsqrt": _via_float64(lambda x: 1 / np.sqrt(x)),
        "reciprocal": _via_float64(lambda x: 1 / x),
    }
)
