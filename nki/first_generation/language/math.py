"""The element-wise functions of ``nl``, which are the operators of ``nisa`` too.

Each is one instruction where the engines have one. Cosine, tangent, rounding and remainders, which
they don't, are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nki.arguments import as_number
from nki.dtypes import info
from nki.errors import NkiTypeError
from nki.first_generation import isa
from nki.first_generation.compute import Operand, compute, tile_of
from nki.first_generation.dtypes import promote, scalar_dtype
from nki.first_generation.isa.common import kind_of
from nki.first_generation.state import current, issue, new_tile
from nki.first_generation.tensors import HOOKS, Tensor
from nki.first_generation.writes import copy, fill, is_number, on_chip, stretch, within
from nki.isa.alu import ALU
from nki.language import circular
from nki.tensor import NkiTensor

__all__ = ["BINARY", "UNARY", "binary", "ceil", "cos", "divide", "floor", "fmod", "mod", "sin", "tan", "trunc", "where"]  # fmt: skip  # noqa: E501

Function = Callable[..., Tensor]

_ACTIVATIONS = (
    "abs", "arctan", "erf", "erf_dx", "exp", "gelu", "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx", "gelu_apprx_tanh", "gelu_dx", "log", "mish", "relu", "rsqrt",
    "sigmoid", "sign", "silu", "silu_dx", "softplus", "sqrt", "square", "tanh",
)  # fmt: skip
_ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum", "power")
_BITVEC = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
_TRUTH = (
    "equal", "not_equal", "greater", "greater_equal", "less", "less_equal",
    "logical_and", "logical_or", "logical_xor",
)  # fmt: skip


def _common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != len(b):
        return a
    return tuple(max(m, n) for m, n in zip(a, b, strict=True))


def binary(
    op: str, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, truth: bool = False
) -> Tensor:
    """Return ``x <op> y`` of tiles that broadcast, or of a tile and a number.

    Args:
        op: an operator of the table.
        x: a tile or a number.
        y: a tile or a number; one of them is a tile.
        dtype: of the result; by default what both promote to, or bool for truth values.
        mask: where the instruction takes part.
        truth: the operator compares.

    Raises:
        NkiTypeError: two numbers, or something else (NKI268).
        NkiError: shapes that don't broadcast (NKI266).
    """
    default = "bool_" if truth else None
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        domain = _common_shape(x.shape, y.shape)
        a, b = (on_chip(within(tile, mask, domain)) for tile in (x, y))
        return _tiles(op, a, b, dtype, mask, default)
    tensor, number = (x, y) if isinstance(x, Tensor) else (y, x)
    if not isinstance(tensor, Tensor) or not is_number(number):
        raise NkiTypeError(
            "NKI268",
            f"nl.{op} was given {type(x).__name__} and {type(y).__name__}",
            "give two tiles, or a tile and a number",
        )
    own = tensor.kind
    kind = default or (own if ALU[op].bitvec else promote(own, scalar_dtype(number)))
    if ALU[op].bitvec:
        number = int(number)
    return isa.tensor_scalar(
        tensor,
        op,
        number,
        reverse0=tensor is y or not isinstance(x, Tensor),
        dtype=kind_of(dtype, kind),
        mask=mask,
    )


def _tiles(
    op: str, a: NkiTensor, b: NkiTensor, dtype: Any, mask: Any, default: str | None
) -> Tensor:
    kind = kind_of(dtype, default or promote(a.dtype, b.dtype))
    shape = _common_shape(a.shape, b.shape)
    a, b = stretch(a, shape), stretch(b, shape)
    return compute(
        "tensor_tensor",
        shape,
        kind,
        {"data1": Operand(a), "data2": Operand(b)},
        attributes={"op": op},
        mask=mask,
    )


def _named(function: Function, name: str, text: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "neuronxcc.nki.language"
    function.__doc__ = text
    return function


def _activation(op: str) -> Function:
    def function(x: Tensor, *, dtype: Any = None, mask: Any = None, **more: Any) -> Tensor:
        return isa.activation(op, x, dtype=dtype, mask=mask, **more)

    return _named(function, op, f"Return {op} of every element, in the tile's type by default.")


def _operator(op: str, *, truth: bool) -> Function:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
        return binary(op, x, y, dtype=dtype, mask=mask, truth=truth)

    return _named(function, op, f"Return {op} of tiles that broadcast, or of a tile and a number.")


def _negative(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    return isa.tensor_scalar(x, "multiply", -1.0, dtype=dtype, mask=mask)


def _reciprocal(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    return isa.reciprocal(x, dtype=dtype, mask=mask)


def _invert(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    return isa.tensor_scalar(x, "invert", None, dtype=dtype, mask=mask)


def _logical_not(x: Tensor, *, dtype: Any = bool, mask: Any = None) -> Tensor:
    return isa.tensor_scalar(x, "equal", 0.0, dtype=dtype, mask=mask)


def _copy(src: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    return isa.tensor_copy(src, mask=mask, dtype=dtype, **more)


UNARY: dict[str, Function] = {
    **{name: _activation(name) for name in _ACTIVATIONS},
    "negative": _named(_negative, "negative", "Return the tile with every sign changed."),
    "reciprocal": _named(_reciprocal, "reciprocal", "Return 1 / x (Vector Engine)."),
    "invert": _named(_invert, "invert", "Return the integers with every bit changed."),
    "logical_not": _named(_logical_not, "logical_not", "Return where the tile is 0."),
    "copy": _named(_copy, "copy", "Return a copy of a tile in SBUF."),
}
BINARY: dict[str, Function] = {
    **{name: _operator(name, truth=False) for name in _ARITHMETIC + _BITVEC},
    **{name: _operator(name, truth=True) for name in _TRUTH},
}


# --- what takes several instructions -------------------------------------------------------------

_FLOAT = "float32"


def _final(made: Tensor, dtype: Any, default: str, mask: Any) -> Tensor:
    """Convert the last step, and let a mask limit it."""
    return isa.tensor_copy(made, dtype=kind_of(dtype, default), mask=mask)


def _float_kind(*values: Any) -> str:
    kinds = [v.kind if isinstance(v, Tensor) else scalar_dtype(v) for v in values]
    kind = kinds[0] if len(kinds) == 1 else promote(kinds[0], kinds[1])
    return kind if info(kind).is_float else _FLOAT


def divide(x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return x / y, as x times the reciprocal of y: the engines do not divide."""
    kind = kind_of(dtype, _float_kind(x, y))
    if not isinstance(y, Tensor):
        number = as_number(y, "nl.divide y")
        inverse = 1.0 / number if number else math.copysign(math.inf, number)
        return binary("multiply", x, np.float32(inverse), dtype=kind, mask=mask)
    return binary("multiply", isa.reciprocal(y, dtype=_FLOAT), x, dtype=kind, mask=mask)


def _of_angles(emit: Callable[[NkiTensor, NkiTensor], None], name: str, text: str) -> Function:
    def function(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
        angles = isa.tensor_copy(x, dtype=_FLOAT).tile()
        made = new_tile(angles.shape, _FLOAT)
        current().flush()
        if angles.storage in current().empty:
            current().empty.add(made.storage)
        else:
            emit(angles, made)
        return _final(Tensor((made,)), dtype, x.kind, mask)

    return _named(function, name, f"Return the {text} of angles from -2**23 to 2**23.")


sin = _of_angles(circular.sine, "sin", "sine")
cos = _of_angles(circular.cosine, "cos", "cosine")
tan = _of_angles(circular.tangent, "tan", "tangent")

# Floating-point numbers from here on are whole.
_WHOLE = float(2**23)


def _floor32(x: Tensor) -> Tensor:
    """Return the floor in float32: rounded by a conversion, and corrected."""
    wide = isa.tensor_copy(x, dtype=_FLOAT)
    rounded = isa.tensor_copy(isa.tensor_copy(wide, dtype="int32"), dtype=_FLOAT)
    above = binary("greater", rounded, wide, dtype=_FLOAT)
    lower = binary("subtract", rounded, above)
    small = binary("less", isa.activation("abs", wide), _WHOLE, dtype="uint8")
    return where(small, lower, wide)


def floor(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the largest whole number that is not above each element."""
    return _final(_floor32(x), dtype, x.kind, mask)


def ceil(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the smallest whole number that is not below each element."""
    upside = _floor32(isa.tensor_scalar(x, "multiply", -1.0, dtype=_FLOAT))
    return isa.tensor_scalar(upside, "multiply", -1.0, dtype=kind_of(dtype, x.kind), mask=mask)


def trunc(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return each element without its fraction."""
    size = _floor32(isa.activation("abs", x, dtype=_FLOAT))
    signed = binary("multiply", size, isa.activation("sign", x, dtype=_FLOAT))
    return _final(signed, dtype, x.kind, mask)


def _remainder(x: Any, y: Any, *, rounded: Function) -> Tensor:
    """Return x - rounded(x / y) * y in float32; the quotient may be one too large or too small."""
    quotient = rounded(divide(x, y, dtype=_FLOAT))
    return binary("subtract", x, binary("multiply", quotient, y, dtype=_FLOAT), dtype=_FLOAT)


def mod(x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the remainder with the sign of y, in float32 arithmetic."""
    kind = _result_kind(x, y)
    rest = _remainder(x, y, rounded=_floor32)
    # The reciprocal is rounded, so the quotient can be wrong by one.
    wrong = binary("less", binary("multiply", rest, y, dtype=_FLOAT), 0.0, dtype=_FLOAT)
    rest = binary("add", rest, binary("multiply", wrong, y, dtype=_FLOAT))
    magnitude = binary("greater_equal", _size(rest), _size_of(y), dtype=_FLOAT)
    rest = binary("subtract", rest, binary("multiply", magnitude, y, dtype=_FLOAT))
    return _final(rest, dtype, kind, mask)


def fmod(x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the remainder with the sign of x, in float32 arithmetic."""
    kind = _result_kind(x, y)
    rest = mod(_size_of(x), _size_of(y), dtype=_FLOAT)
    if isinstance(x, Tensor):
        sign: Any = isa.activation("sign", x, dtype=_FLOAT)
    else:
        sign = float(np.sign(as_number(x, "nl.fmod x")))
    return _final(binary("multiply", rest, sign, dtype=_FLOAT), dtype, kind, mask)


def _result_kind(x: Any, y: Any) -> str:
    kinds = [v.kind if isinstance(v, Tensor) else scalar_dtype(v) for v in (x, y)]
    return promote(kinds[0], kinds[1])


def _size(x: Tensor) -> Tensor:
    return isa.activation("abs", x, dtype=_FLOAT)


def _size_of(x: Any) -> Any:
    return _size(x) if isinstance(x, Tensor) else np.float32(abs(as_number(x, "nl.fmod")))


def where(condition: Tensor, x: Any, y: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the elements of x where a condition is not 0, else those of y; both may be numbers."""
    chosen = on_chip(tile_of(condition, "nl.where condition"))
    x, y = (Tensor((on_chip(v.tile()),)) if isinstance(v, Tensor) else v for v in (x, y))
    values = [v for v in (x, y) if isinstance(v, Tensor)]
    shape = chosen.shape
    for value in values:
        shape = _common_shape(shape, value.shape)
    kinds = [v.kind if isinstance(v, Tensor) else scalar_dtype(v) for v in (x, y)]
    kind = kind_of(dtype, promote(kinds[0], kinds[1]))
    made = new_tile(shape, kind)
    if isinstance(y, Tensor):
        copy(made, stretch(y.tile(), shape))
    else:
        fill(made, y)
    source = new_tile(shape, kind)
    if isinstance(x, Tensor):
        copy(source, stretch(x.tile(), shape))
    else:
        fill(source, x)
    truth = Tensor((stretch(chosen, shape),))
    if not info(truth.kind).is_int and truth.kind != "bool_":
        truth = isa.tensor_scalar(truth, "not_equal", 0.0, dtype="uint8")
    predicate = isa.unsigned(truth)
    issue("tensor_copy_predicated", dst=made, src=source, predicate=predicate)
    result = Tensor((made,))
    return result if mask is None else isa.tensor_copy(result, mask=mask)


HOOKS.update(UNARY)
HOOKS.update(BINARY)
HOOKS.update(divide=divide, mod=mod)
