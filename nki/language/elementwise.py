"""Operators and functions element by element: tables of one row per documented name."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from nki.context import current_core
from nki.dtypes import info
from nki.errors import NkiTypeError
from nki.isa.functions import FUNCTIONS
from nki.language.circular import cosine, sine, tangent
from nki.language.function import Binary, Truth, Unary
from nki.language.tiles import Number, new
from nki.tensor import NkiTensor
from nki.versions import since

__all__ = [
    "abs",
    "abs_max",
    "abs_min",
    "add",
    "arctan",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "cos",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mish",
    "multiply",
    "negative",
    "not_equal",
    "reciprocal",
    "relu",
    "right_shift",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
]

Emit = Callable[[NkiTensor, NkiTensor], None]


# --- of two arguments --------------------------------------------------------------------------


class _Bitwise(Binary):
    """An operator on the bits of integers."""

    def __call__(
        self, x: NkiTensor | Number, y: NkiTensor | Number, dtype: Any = None
    ) -> NkiTensor:
        for name, value in (("x", x), ("y", y)):
            whole = (
                info(value.dtype).is_int
                if isinstance(value, NkiTensor)
                else isinstance(value, (int, np.integer))
            )
            if not whole:
                shown = value.dtype if isinstance(value, NkiTensor) else repr(value)
                raise NkiTypeError(
                    "NKI240",
                    f"nl.{self.__name__} {name} must be integer, got {shown}",
                    "reinterpret bits with .view(nl.uint32), or convert with nl.copy(x, nl.int32)",
                )
        return super().__call__(x, y, dtype)


def _compare(name: str, sign: str) -> Truth:
    return Truth(name, f"Return 1 where x {sign} y and 0 elsewhere.")


add: Final = Binary("add", "Return x + y.")
subtract: Final = Binary("subtract", "Return x - y.")
multiply: Final = Binary("multiply", "Return x * y.")
maximum: Final = Binary("maximum", "Return the larger of x and y.")
minimum: Final = Binary("minimum", "Return the smaller of x and y.")
abs_max: Final = Binary(
    "abs_max",
    "Return x where |x| > |y|, else y; either may have one float32 element per partition. From "
    "NeuronCore-v4 on.",
    vectors=True,
)
abs_min: Final = Binary(
    "abs_min",
    "Return x where |x| < |y|, else y; either may have one float32 element per partition. From "
    "NeuronCore-v4 on.",
    vectors=True,
)
equal: Final = _compare("equal", "==")
not_equal: Final = _compare("not_equal", "!=")
less: Final = _compare("less", "<")
less_equal: Final = _compare("less_equal", "<=")
greater: Final = _compare("greater", ">")
greater_equal: Final = _compare("greater_equal", ">=")
logical_and: Final = Truth("logical_and", "Return 1 where x and y are not 0.")
logical_or: Final = Truth("logical_or", "Return 1 where x or y is not 0.")
logical_xor: Final = Truth("logical_xor", "Return 1 where one of x and y is 0.")
bitwise_and: Final = _Bitwise("bitwise_and", "Return the bits that x and y have both.")
bitwise_or: Final = _Bitwise("bitwise_or", "Return the bits that x or y has.")
bitwise_xor: Final = _Bitwise("bitwise_xor", "Return the bits that one of x and y has.")
left_shift: Final = _Bitwise("left_shift", "Return x with its bits shifted left by y.")
right_shift: Final = _Bitwise(
    "right_shift",
    "Return x with its bits shifted right by y; zeros come in, also for signed types.",
)


# --- of one argument ---------------------------------------------------------------------------


def _activation(name: str, text: str) -> Unary:
    """Make a function that the Scalar Engine evaluates."""
    return Unary(name, text, lambda x, out: _activate(name, x, out))


def _activate(name: str, x: NkiTensor, out: NkiTensor, **more: Any) -> None:
    FUNCTIONS["activation"](out, name, x, **more)


def _scalar(op: str, operand: Number | None) -> Emit:
    return lambda x, out: FUNCTIONS["tensor_scalar"](out, x, op, operand)


def _rsqrt(x: NkiTensor, out: NkiTensor) -> None:
    if since("nl.rsqrt"):
        FUNCTIONS["tensor_scalar"](out, x, "rsqrt", 0.0)
    else:
        _activate("rsqrt", x, out)


def _reciprocal(x: NkiTensor, out: NkiTensor) -> None:
    FUNCTIONS["reciprocal"](out, x)


def constant_bias(value: float, partitions: int) -> NkiTensor | float:
    """Return a bias of activations: NeuronCore-v2 takes tensors only."""
    if current_core().target.core.isa > 2:
        return value
    bias = new((partitions, 1), "float32")
    FUNCTIONS["memset"](bias, value)
    return bias


exp: Final = _activation("exp", "Return e to the power of x.")
log: Final = _activation("log", "Return the natural logarithm of x, from 2**-64 to 2**64.")
sqrt: Final = _activation("sqrt", "Return the square root of x.")
tanh: Final = _activation("tanh", "Return the hyperbolic tangent of x.")
sigmoid: Final = _activation("sigmoid", "Return 1 / (1 + exp(-x)).")
relu: Final = _activation("relu", "Return max(x, 0).")
gelu: Final = _activation("gelu", "Return x times the normal distribution function of x.")
gelu_apprx_sigmoid: Final = _activation(
    "gelu_apprx_sigmoid", "Return x * sigmoid(1.702 * x), an approximation of gelu."
)
gelu_apprx_tanh: Final = _activation(
    "gelu_apprx_tanh",
    "Return x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), an approximation of gelu.",
)
gelu_dx: Final = _activation("gelu_dx", "Return the derivative of gelu at x.")
gelu_apprx_sigmoid_dx: Final = _activation(
    "gelu_apprx_sigmoid_dx", "Return the derivative of gelu_apprx_sigmoid at x."
)
silu: Final = _activation("silu", "Return x * sigmoid(x).")
silu_dx: Final = _activation("silu_dx", "Return the derivative of silu at x.")
softplus: Final = _activation("softplus", "Return log(1 + exp(x)).")
mish: Final = _activation("mish", "Return x * tanh(softplus(x)).")
erf: Final = _activation("erf", "Return the error function of x.")
erf_dx: Final = _activation("erf_dx", "Return the derivative of the error function at x.")
sin: Final = Unary(
    "sin",
    "Return the sine of x, from -2**23 to 2**23. As an operator of an instruction it is the Scalar "
    "Engine's, from -pi to pi.",
    sine,
)
arctan: Final = _activation("arctan", "Return the inverse tangent of x, from -pi/2 to pi/2.")
sign: Final = _activation("sign", "Return -1, 0 or 1, the sign of x.")
square: Final = _activation("square", "Return x * x.")
cos: Final = Unary("cos", "Return the cosine of x, from -2**23 to 2**23.", cosine)
tan: Final = Unary(
    "tan", "Return the tangent of x, from -2**23 to 2**23: sin(x) / cos(x).", tangent
)
abs: Final = Unary(  # noqa: A001
    "abs", "Return the absolute value of x.", _scalar("abs", None)
)
negative: Final = Unary("negative", "Return -x.", _scalar("multiply", -1.0))
rsqrt: Final = Unary(
    "rsqrt", "Return 1 / sqrt(x); of tiles in sbuf, for it runs on GpSimd since NKI 0.5.", _rsqrt
)
reciprocal: Final = Unary("reciprocal", "Return 1 / x.", _reciprocal)
invert: Final = Unary(
    "invert", "Return x, of integers, with every bit changed.", _scalar("invert", None)
)
logical_not: Final = Unary(
    "logical_not",
    "Return 1 where x is 0 and 0 where it is 1: x must hold nothing else, as documented.",
    _scalar("logical_xor", 1.0),
)
