"""The activation functions of the Scalar Engine.

The hardware evaluates piecewise polynomials whose coefficients are not published. Here each
function is its definition in float64, rounded once to float32, inside and outside of the
documented input range. The exception is documented too: `sin` reduces no argument, and the cubic
of its last piece goes on outside of [-pi, pi], so that sin(9.0) is 27.65. The documentation gives
that one value; the cubic here, the third Taylor polynomial about the ends, gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from neuronxcc.ir.arithmetic import maximum
from nki.isa.cast import Array

__all__ = ["ACTIVATIONS", "Activation", "activate", "outside"]

Function = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation function.

    Attributes:
        name: as in `nki.language`.
        function: of float64 arrays: the input, and the parameter of `prelu`.
        low: the least input that the documentation calls valid.
        high: the greatest one.
        magnitude: the limits hold for the absolute value.
    """

    name: str
    function: Function
    low: float = -math.inf
    high: float = math.inf
    magnitude: bool = False


_erf = np.vectorize(math.erf, otypes=[np.float64])
_SQRT2 = math.sqrt(2.0)


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def _density(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _normal(x: Array) -> Array:
    return 0.5 * (1 + np.asarray(_erf(x / _SQRT2)))


def _times(x: Array, factor: Array) -> Array:
    """Return x * factor, where a factor of 0 also takes infinity to 0."""
    return np.where(factor == 0, 0.0, x * factor)


def _gelu_tanh(x: Array) -> Array:
    return _times(x, 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _gelu_sigmoid_dx(x: Array) -> Array:
    gate = _sigmoid(1.702 * x)
    return gate + _times(1.702 * x, gate * (1 - gate))


def _silu_dx(x: Array) -> Array:
    gate = _sigmoid(x)
    return gate + _times(x, gate * (1 - gate))


def _sin(x: Array) -> Array:
    over = np.abs(x) - math.pi
    outer = np.sign(x) * over * (over**2 / 6 - 1)
    return np.where(over <= 0, np.sin(x), outer)


def _of(function: Callable[[Array], Array]) -> Function:
    def ignoring(x: Array, parameter: Array) -> Array:
        del parameter
        return np.asarray(function(x))

    return ignoring


_ROWS = (
    Activation("copy", _of(lambda x: x)),
    Activation("square", _of(lambda x: x * x)),
    Activation("sigmoid", _of(_sigmoid)),
    Activation("relu", _of(lambda x: maximum(x, np.zeros_like(x)))),
    Activation("prelu", lambda x, slope: np.where(x >= 0, x, _times(x, slope))),
    Activation("gelu", _of(lambda x: _times(x, _normal(x)))),
    Activation("gelu_dx", _of(lambda x: _normal(x) + _times(x, _density(x)))),
    Activation("gelu_apprx_tanh", _of(_gelu_tanh)),
    Activation("gelu_apprx_sigmoid", _of(lambda x: _times(x, _sigmoid(1.702 * x)))),
    Activation("gelu_apprx_sigmoid_dx", _of(_gelu_sigmoid_dx)),
    Activation("silu", _of(lambda x: _times(x, _sigmoid(x)))),
    Activation("silu_dx", _of(_silu_dx)),
    Activation("tanh", _of(np.tanh)),
    Activation("softplus", _of(lambda x: np.logaddexp(0.0, x))),
    Activation("mish", _of(lambda x: _times(x, np.tanh(np.logaddexp(0.0, x))))),
    Activation("erf", _of(_erf)),
    Activation("erf_dx", _of(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x))),
    Activation("exp", _of(np.exp)),
    Activation("log", _of(np.log), 2.0**-64, 2.0**64),
    Activation("sin", _of(_sin), -math.pi, math.pi),
    Activation("arctan", _of(np.arctan), -math.pi / 2, math.pi / 2),
    Activation("sqrt", _of(np.sqrt), 2.0**-116, 2.0**118),
    Activation("rsqrt", _of(lambda x: 1 / np.sqrt(x)), 2.0**-87, 2.0**97),
    Activation("reciprocal", _of(lambda x: 1 / x), 2.0**-42, 2.0**42, magnitude=True),
    Activation("sign", _of(np.sign)),
    Activation("abs", _of(np.abs)),
)
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({row.name: row for row in _ROWS})


def activate(name: str, x: Array, parameter: Array | None = None) -> Array:
    """Apply a function to float32 values and return float32 of the same shape.

    Args:
        name: a key of :data:`ACTIVATIONS`.
        x: the values.
        parameter: the slope of `prelu` for negative values, by default 0; broadcasts against `x`.
    """
    slope = np.zeros(()) if parameter is None else parameter.astype(np.float64)
    wide = ACTIVATIONS[name].function(x.astype(np.float64), slope)
    result: Array = wide.astype(np.float32)
    return result


def outside(name: str, x: Array) -> Array:
    """Return where values lie outside of the documented input range; NaN is nowhere outside."""
    row = ACTIVATIONS[name]
    value = np.abs(x) if row.magnitude else x
    return np.asarray((value < row.low) | (value > row.high))
