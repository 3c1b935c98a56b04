"""Functions that several instructions make up: rounding, division, remainders, powers.

No engine rounds to whole numbers, divides or takes remainders, so these are sequences of what they
do. The release notes say of division, remainders and powers with a number as the exponent that they
fail on hardware, so each use is a finding (NKI243) of the recording.
"""

from typing import Any, Final

import numpy as np

from nki.context import current_run
from nki.dtypes import info
from nki.isa.functions import FUNCTIONS
from nki.language.function import Binary, Unary
from nki.language.tiles import Number, cast_copy, new
from nki.tensor import NkiTensor

__all__ = ["ceil", "divide", "floor", "fmod", "mod", "power", "trunc"]

_WHOLE = float(2**23)  # every float32 from here on is a whole number


def _missing(function: str, remedy: str) -> None:
    recorder = current_run()
    if recorder is not None:
        recorder.finding(
            "NKI243", f"{function} fails on hardware, which has no such operator: {remedy}"
        )


def _tensors(op: str, x: NkiTensor, y: NkiTensor, out: NkiTensor | None = None) -> NkiTensor:
    result = new(x.shape, "float32") if out is None else out
    FUNCTIONS["tensor_tensor"](result, x, y, op)
    return result


def _numbers(
    x: NkiTensor, op0: str, operand0: Number | None, dtype: str = "float32", **more: Any
) -> NkiTensor:
    result = new(x.shape, dtype)
    FUNCTIONS["tensor_scalar"](result, x, op0, operand0, **more)
    return result


def _sign(x: NkiTensor) -> NkiTensor:
    result = new(x.shape, "float32")
    FUNCTIONS["activation"](result, "sign", x)
    return result


# --- rounding ----------------------------------------------------------------------------------


def _nearest(x: NkiTensor) -> NkiTensor:
    """Return whole numbers of float32: casts to integers round to the nearest one."""
    whole = cast_copy(x, "int32")
    return cast_copy(whole, "float32")


def _floor(x: NkiTensor) -> NkiTensor:
    near = _nearest(x)
    return _tensors("subtract", near, _tensors("greater", near, x))


def _ceil(x: NkiTensor) -> NkiTensor:
    near = _nearest(x)
    return _tensors("add", near, _tensors("less", near, x))


def _trunc(x: NkiTensor) -> NkiTensor:
    return _tensors("multiply", _floor(_numbers(x, "abs", None)), _sign(x))


def _with_large(rounded: NkiTensor, x: NkiTensor) -> NkiTensor:
    """Return a rounded tile, but `x` itself where it is too large to round, infinite or NaN."""
    small = _numbers(x, "abs", None, "uint8", op1="less", operand1=_WHOLE)
    result = cast_copy(x, "float32")
    FUNCTIONS["tensor_copy_predicated"](result, rounded, small)
    return result


def _rounding(function: Any) -> Any:
    def emit(x: NkiTensor, out: NkiTensor) -> None:
        if not info(x.dtype).is_float:
            FUNCTIONS["tensor_copy"](out, x)
            return
        wide = x if x.dtype == "float32" else cast_copy(x, "float32")
        FUNCTIONS["tensor_copy"](out, _with_large(function(wide), wide))

    return emit


floor: Final = Unary(
    "floor", "Return the largest whole number that is at most x.", _rounding(_floor)
)
ceil: Final = Unary(
    "ceil", "Return the smallest whole number that is at least x.", _rounding(_ceil)
)
trunc: Final = Unary("trunc", "Return x without its fraction.", _rounding(_trunc))


# --- division ----------------------------------------------------------------------------------


def _inverse(y: NkiTensor) -> NkiTensor:
    result = new(y.shape, "float32")
    FUNCTIONS["reciprocal"](result, y)
    return result


def _divide(x: NkiTensor | Number, y: NkiTensor | Number, out: NkiTensor) -> None:
    _missing("nl.divide", "write nl.multiply(x, nl.reciprocal(y))")
    if not isinstance(y, NkiTensor):
        with np.errstate(divide="ignore"):
            FUNCTIONS["tensor_scalar"](out, x, "multiply", float(1 / np.float64(y)))
    elif isinstance(x, NkiTensor):
        _tensors("multiply", x, _inverse(y), out)
    else:
        FUNCTIONS["tensor_scalar"](out, _inverse(y), "multiply", x)


def _tile_of(value: NkiTensor | Number, like: NkiTensor) -> NkiTensor:
    if isinstance(value, NkiTensor):
        return value
    result = new(like.shape, "float32")
    FUNCTIONS["memset"](result, float(value))
    return result


def _remainder(x: NkiTensor, y: NkiTensor) -> NkiTensor:
    """Return the remainder with the sign of `x`, in float32.

    The quotient is rounded, so that it may be one too large or too small; then the remainder is
    below 0 or at least |y|, and is put right.
    """
    over, under = _numbers(x, "abs", None), _numbers(y, "abs", None)
    quotient = _tensors("multiply", over, _inverse(under))
    quotient = _with_large(_floor(quotient), quotient)
    rest = _tensors("subtract", over, _tensors("multiply", quotient, under))
    below = _numbers(rest, "less", 0.0)
    rest = _tensors("add", rest, _tensors("multiply", below, under))
    above = _tensors("greater_equal", rest, under)
    rest = _tensors("subtract", rest, _tensors("multiply", above, under))
    return _tensors("multiply", rest, _sign(x))


_NO_REMAINDER = "compute x - y * floor(x / y) with instructions, or on the host"


def _fmod(x: NkiTensor | Number, y: NkiTensor | Number, out: NkiTensor) -> None:
    _missing("nl.fmod", _NO_REMAINDER)
    FUNCTIONS["tensor_copy"](out, _remainder(_tile_of(x, out), _tile_of(y, out)))


def _mod(x: NkiTensor | Number, y: NkiTensor | Number, out: NkiTensor) -> None:
    _missing("nl.mod", _NO_REMAINDER)
    divisor = _tile_of(y, out)
    rest = _remainder(_tile_of(x, out), divisor)
    other_sign = _numbers(_tensors("multiply", rest, _sign(divisor)), "less", 0.0)
    _tensors("add", rest, _tensors("multiply", other_sign, divisor), out)


def _power(x: NkiTensor | Number, y: NkiTensor | Number, out: NkiTensor) -> None:
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        _tensors("power", x, y, out)
        return
    _missing("nl.power of a tile and a number", "make a tile of the number with nl.full")
    reverse = not isinstance(x, NkiTensor)
    data, operand = (y, x) if reverse else (x, y)
    FUNCTIONS["tensor_scalar"](out, data, "power", operand, reverse0=reverse)


divide: Final = Binary("divide", "Return x * (1 / y), which hardware has no operator for.", _divide)
fmod: Final = Binary(
    "fmod", "Return the remainder of x / y with the sign of x; simulation only.", _fmod
)
mod: Final = Binary(
    "mod", "Return the remainder of x / y with the sign of y; simulation only.", _mod
)
power: Final = Binary("power", "Return x to the power of y.", _power)
