"""The activation functions of `nki.isa.act` as expressions of loop kernels, in float32.

The formulas are those of the table there; where float32 would lose what float64 keeps, they are
rearranged. Factors of 0 take infinity to 0, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.op import Op

__all__ = ["EXPRESSIONS", "activate"]

Expression = Callable[[Scalar, Scalar | None], Scalar]


def _number(value: float) -> float:
    """The float32 nearest to a number."""
    return float(np.float32(value))


def _mul(x: Scalar, y: Scalar | float) -> Scalar:
    return build.op(Op.MULTIPLY, x, y if isinstance(y, Scalar) else _number(y))


def _add(x: Scalar, y: Scalar | float) -> Scalar:
    return build.op(Op.ADD, x, y if isinstance(y, Scalar) else _number(y))


def _times(x: Scalar, factor: Scalar) -> Scalar:
    """Return x * factor, where a factor of 0 also takes infinity to 0."""
    return build.select(build.compare("EQ", factor, 0.0), 0.0, _mul(x, factor))


def _unary(operator: Op) -> Expression:
    return lambda x, _: build.op(operator, x)


def _sigmoid(x: Scalar) -> Scalar:
    return build.op(Op.LOGISTIC, x)


def _density(x: Scalar) -> Scalar:
    return _mul(build.op(Op.EXP, _mul(_mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))


def _normal(x: Scalar) -> Scalar:
    return _mul(_add(build.op(Op.ERF, _mul(x, 1 / math.sqrt(2))), 1.0), 0.5)


def _gelu_tanh(x: Scalar) -> Scalar:
    cubic = _mul(_add(_mul(_mul(x, x), 0.044715), 1.0), x)
    inner = build.op(Op.TANH, _mul(cubic, math.sqrt(2 / math.pi)))
    return _times(x, _mul(_add(inner, 1.0), 0.5))


def _slope(x: Scalar, scale: float) -> Scalar:
    """The derivative of x * sigmoid(scale * x)."""
    scaled = x if scale == 1.0 else _mul(x, scale)
    gate = _sigmoid(scaled)
    other = _sigmoid(build.op(Op.NEGATE, scaled))  # 1 - gate, without cancellation
    return _add(gate, _times(scaled, _mul(gate, other)))


def _softplus(x: Scalar) -> Scalar:
    small = build.op(Op.EXP, build.op(Op.NEGATE, build.op(Op.ABS, x)))
    return _add(build.op(Op.MAXIMUM, x, 0.0), build.op(Op.LOG1P, small))


_PI = _number(math.pi)
_PI_REST = _number(math.pi - _PI)


def _sin(x: Scalar) -> Scalar:
    high = build.op(Op.SUBTRACT, build.op(Op.ABS, x), _PI)
    over = build.op(Op.SUBTRACT, high, _PI_REST)
    cubic = _mul(over, build.op(Op.SUBTRACT, _mul(_mul(over, over), 1 / 6), 1.0))
    outer = build.select(build.compare("LT", x, 0.0), build.op(Op.NEGATE, cubic), cubic)
    return build.select(build.compare("LE", over, 0.0), build.op(Op.SIN, x), outer)


def _prelu(x: Scalar, slope: Scalar | None) -> Scalar:
    below = build.const(0.0, x.dtype) if slope is None else slope
    return build.select(build.compare("GE", x, 0.0), x, _times(x, below))


EXPRESSIONS: Mapping[str, Expression] = MappingProxyType(
    {
        "copy": lambda x, _: x,
        "square": lambda x, _: _mul(x, x),
        "sigmoid": lambda x, _: _sigmoid(x),
        "relu": lambda x, _: build.op(Op.MAXIMUM, x, 0.0),
        "prelu": _prelu,
        "gelu": lambda x, _: _times(x, _normal(x)),
        "gelu_dx": lambda x, _: _add(_normal(x), _times(x, _density(x))),
        "gelu_apprx_tanh": lambda x, _: _gelu_tanh(x),
        "gelu_apprx_sigmoid": lambda x, _: _times(x, _sigmoid(_mul(x, 1.702))),
        "gelu_apprx_sigmoid_dx": lambda x, _: _slope(x, 1.702),
        "silu": lambda x, _: _times(x, _sigmoid(x)),
        "silu_dx": lambda x, _: _slope(x, 1.0),
        "tanh": _unary(Op.TANH),
        "softplus": lambda x, _: _softplus(x),
        "mish": lambda x, _: _times(x, build.op(Op.TANH, _softplus(x))),
        "erf": _unary(Op.ERF),
        "erf_dx": lambda x, _: _mul(
            build.op(Op.EXP, build.op(Op.NEGATE, _mul(x, x))), 2 / math.sqrt(math.pi)
        ),
        "exp": _unary(Op.EXP),
        "log": _unary(Op.LOG),
        "sin": lambda x, _: _sin(x),
        "arctan": _unary(Op.ATAN),
        "sqrt": _unary(Op.SQRT),
        "rsqrt": lambda x, _: build.op(Op.RSQRT, x),
        "reciprocal": lambda x, _: build.op(Op.DIVIDE, build.const(1.0, x.dtype), x),
        "sign": lambda x, _: _add(build.op(Op.SIGN, x), 0.0),  # no -0
        "abs": _unary(Op.ABS),
    }
)


def activate(name: str, x: Scalar, parameter: Scalar | None = None) -> Scalar:
    """Apply a function to a float32 value.

    Args:
        name: a key of `nki.isa.act.ACTIVATIONS`.
        x: the value.
        parameter: the slope of `prelu`, by default 0.
    """
    return EXPRESSIONS[name](x, parameter)
