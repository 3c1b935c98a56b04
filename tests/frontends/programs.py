"""JAX programs, one entry for what a front end has to get right: name, function, arguments.

XLA on the CPU runs them too, which is what results are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_RNG = np.random.default_rng(20261122)


def floats(*shape: int) -> Any:
    """Normal float32 numbers."""
    return _RNG.standard_normal(shape).astype(np.float32)


def integers(*shape: int, low: int = -9, high: int = 9) -> Any:
    """int32 numbers in [low, high)."""
    return _RNG.integers(low, high, shape).astype(np.int32)


@dataclass(frozen=True)
class JaxProgram:
    """A function of JAX, its arguments, and how far results may be from XLA's.

    Attributes:
        function: What is lowered.
        args: Its arguments.
        ulps: Largest error, in roundings of float32 of the largest magnitude in the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    ulps: float = 16.0


def _program(function: Callable[..., Any], *args: Any, ulps: float = 16.0) -> JaxProgram:
    return JaxProgram(function, args, ulps)


def _transformer(weights: list[Any], x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhe->bhse", x, w) for w in weights[:3])
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
    scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / 2.0, -1e9)
    y = jnp.einsum("bhse,hed->bsd", jax.nn.softmax(scores) @ v, weights[3]) + x
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return (jax.nn.gelu(y) ** 2).mean()


def _convnet(weights: list[Any], x: Any) -> Any:
    for w in weights[:2]:
        x = lax.conv_general_dilated(x, w, (1, 1), "SAME")
        x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "SAME")
    return jax.nn.log_softmax(x.reshape(x.shape[0], -1) @ weights[2])[:, 0].mean()


def _pool(kind: Callable[..., Any], start: float, padding: str) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, start, kind, (1, 3, 2), (1, 2, 2), padding)


def _cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: (x * 300).astype(dtype).astype(jnp.float32)


_X = floats(4, 6)
_WEIGHTS = [floats(8, 2, 4), floats(8, 2, 4), floats(8, 2, 4), floats(2, 4, 8)]
_FILTERS = [floats(3, 2, 3, 3), floats(4, 3, 3, 3), floats(16, 5)]
_KEY = np.array([1, 2, 0xFFFFFFFF, 0xFFFFFFFF], np.uint32)

PROGRAMS: dict[str, JaxProgram] = {
    "mlp": _program(lambda x, w: jax.nn.softmax(jnp.tanh(x @ w)), _X, floats(6, 5)),
    "transformer and its gradient": _program(
        jax.value_and_grad(_transformer), _WEIGHTS, floats(2, 6, 8), ulps=256
    ),
    "convnet and its gradient": _program(
        jax.value_and_grad(_convnet), _FILTERS, floats(2, 2, 8, 8), ulps=256
    ),
    "convolution, strided and grouped": _program(
        lambda x, w: lax.conv_general_dilated(x, w, (2, 1), "SAME", feature_group_count=2),
        floats(2, 4, 8, 9), floats(6, 2, 3, 3), ulps=64,
    ),
    "gradient of a grouped convolution": _program(
        jax.grad(
            lambda w, x: (
                lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2) ** 2
            ).sum(),
            (0, 1),
        ),
        floats(6, 2, 3, 3), floats(2, 4, 8, 9), ulps=256,
    ),
    "transposed convolution": _program(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), floats(2, 5, 6, 4),
        floats(3, 3, 4, 5), ulps=64,
    ),
    "dot of bfloat16 in float32": _program(
        lambda x: jnp.dot(
            x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16), preferred_element_type=jnp.float32
        ),
        _X,
    ),
    "dot with batches": _program(
        lambda x, y: lax.dot_general(x, y, (((1,), (2,)), ((0,), (0,)))), floats(3, 4, 5),
        floats(3, 2, 4),
    ),
    "reductions": _program(
        lambda x: (x.sum(), x.prod(0), x.max(1), x.min(), jnp.any(x > 1), jnp.all(x > -9, 0)), _X
    ),
    "reductions from a value": _program(
        lambda x: lax.reduce(x, jnp.float32(2), lax.mul, (0,)), _X
    ),
    "a reduction of its own": _program(
        lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a + b - a * b * 0.5, (1,)), _X
    ),
    "two reductions at once": _program(
        lambda x: lax.reduce(
            (x, x * 2), (jnp.float32(0), jnp.float32(1)),
            lambda a, b: (a[0] + b[0] - a[0] * b[0] * 0.25, jnp.minimum(a[1], b[1])), (0, 1),
        ),
        floats(3, 5),
    ),
    "positions of extremes": _program(
        lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)),
        np.round(floats(5, 7)),
    ),
    "positions of extremes with NaN": _program(
        lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), np.where(floats(5, 7) > 1, np.nan, _X[0, 0])
    ),
    "running": _program(
        lambda x: (
            jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1, reverse=True),
            lax.cumlogsumexp(x, 0),
        ),
        _X,
    ),
    "pooling": _program(
        lambda x: (
            _pool(lax.max, -jnp.inf, "SAME")(x), _pool(lax.add, 0.0, "VALID")(x),
            _pool(lax.min, 0.25, "SAME")(x),
        ),
        floats(2, 7, 7),
    ),
    "a window of its own": _program(
        lambda x: lax.reduce_window(
            x, jnp.float32(0), lambda a, b: a + b - a * b * 0.25, (1, 2, 2), (1, 1, 2), "SAME"
        ),
        floats(2, 5, 6),
    ),
    "gradient of max pooling": _program(
        jax.grad(lambda x: (_pool(lax.max, -jnp.inf, "SAME")(x) ** 2).sum()), floats(2, 7, 7)
    ),
    "sort": _program(lambda x: (jnp.sort(x, 0), jnp.sort(x, -1, descending=True)), _X),
    "sort with NaN and zeros": _program(
        jnp.sort, np.array([3, np.nan, -0.0, 0.0, -np.inf, np.inf, -2], np.float32)
    ),
    "argsort": _program(lambda x: jnp.argsort(x, 0), integers(9, 4, low=0, high=3)),
    "sort by two keys": _program(
        lambda a, b, c: lax.sort((a, b, c), num_keys=2), np.round(floats(3, 8)),
        integers(3, 8, low=0, high=2), floats(3, 8),
    ),
    "top k": _program(lambda x: lax.top_k(x, 3), _X),
    "scan": _program(lambda x: lax.scan(lambda c, a: (c + a, c * 2), jnp.zeros(6), x), _X),
    "gradient of scan": _program(
        jax.grad(lambda x: lax.scan(lambda c, a: (jnp.sin(c + a), c), jnp.zeros(6), x)[0].sum()), _X
    ),
    "while": _program(
        lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x)),
        _X,
    ),
    "branches": _program(
        lambda x, i: (
            lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, x),
            lax.switch(i, [lambda x: x + 1, lambda x: x * 2, jnp.cos], x),
        ),
        _X, np.int32(2),
    ),
    "gather": _program(
        lambda x, i: (x[i], x[:, i[:2]], jnp.take_along_axis(x, i[:, None], 1)), _X,
        np.array([3, 0, 1, 1], np.int32),
    ),
    "scatter": _program(
        lambda x, i, u: (x.at[i].add(2.0), x.at[:, i].max(u), x.at[i].set(u.T[0, 0])), _X,
        np.array([3, 0], np.int32), floats(4, 2),
    ),
    "slices": _program(
        lambda x, i: (
            lax.dynamic_update_slice(x, jnp.ones((2, 2)), (i, i + 1)), x[::-1, 1:5:2],
            lax.dynamic_slice(x, (i, i), (2, 3)), jnp.pad(x, ((1, 2), (0, 1))),
            jnp.concatenate([x, x], 1), lax.pad(x, 1.0, ((1, 0, 2), (-1, 0, 0))),
        ),
        _X, np.int32(1),
    ),
    "integers": _program(
        lambda a, b: (
            a // jnp.where(b == 0, 1, b), a % jnp.where(b == 0, 1, b), a << (b & 3), a >> 2, ~a,
            lax.population_count(a), lax.clz(a), a ^ b, lax.shift_right_logical(a, 3),
        ),
        integers(3, 4), integers(3, 4),
    ),
    "bits": _program(
        lambda a: (
            lax.bitcast_convert_type(a, jnp.int32), lax.bitcast_convert_type(a, jnp.uint8),
            lax.bitcast_convert_type(lax.bitcast_convert_type(a, jnp.uint16), jnp.float32),
        ),
        _X,
    ),
    "rounding": _program(
        lambda a: (
            jnp.round(a), lax.round(a), jnp.floor(a), jnp.trunc(a), jnp.cbrt(a), jnp.sign(a),
            jnp.ceil(a), lax.reduce_precision(a, 8, 10),
        ),
        np.concatenate([floats(20) * 3, np.array([0.5, -0.5, 1.5, 2.5, -0.0, 0.49999997])]).astype(
            np.float32
        ),
    ),
    "functions": _program(
        lambda a: (
            lax.erf(a), lax.erf_inv(a * 0.1), jnp.log1p(abs(a)), jnp.expm1(a), jnp.tan(a * 0.3),
            lax.lgamma(abs(a) + 0.1), jnp.arctan2(a, a + 1), jnp.arcsinh(a), jnp.sinh(a),
            lax.digamma(abs(a) + 0.5), jnp.arctanh(a * 0.1), abs(a) ** 1.7, lax.logistic(a),
            lax.rsqrt(abs(a) + 0.1), jnp.clip(a, -0.5, 0.5), lax.is_finite(a / (a - a[0, 0])),
        ),
        _X, ulps=64,
    ),
    "complex": _program(
        lambda a, b: (
            abs(a + 1j * b), jnp.exp(a + 1j * b), (a + 1j * b) @ (b - 1j * a).T,
            jnp.conj(a + 1j * b), jnp.angle(a + 1j * b),
        ),
        _X, floats(4, 6), ulps=64,
    ),
    "small floats": _program(
        lambda x: (
            _cast(jnp.bfloat16)(x), _cast(jnp.float16)(x), _cast(jnp.float8_e5m2)(x),
            _cast(jnp.float8_e4m3fn)(x), _cast(jnp.float8_e4m3)(x),
        ),
        floats(64) * 3,
    ),
    "threefry": _program(
        lambda k: jax.random.normal(jax.random.wrap_key_data(k), (5,)), _KEY[:2], ulps=64
    ),
    "random bits": _program(
        lambda k: [lax.rng_bit_generator(k, (7,), dtype=t) for t in ("uint32", "uint16", "uint8")],
        _KEY,
    ),
}  # fmt: skip
