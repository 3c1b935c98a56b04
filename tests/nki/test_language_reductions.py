"""Reductions, softmax and rms_norm of `nki.language` against NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.language as nl
from nki.errors import NkiError, NkiTypeError
from tests.nki.language_tools import Array, inside, largest, rounding, run

REDUCTIONS = ("sum", "max", "min", "mean", "prod", "var", "all")
SHAPES = st.tuples(st.integers(1, 128), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
KINDS = st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])


pytestmark = pytest.mark.usefixtures("reference_executor")


def numbers(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(seed)
    found: Array = np.round(rng.uniform(-2, 2, shape), 1).astype(dtype)
    return found


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=8, deadline=None)
@given(
    shape=SHAPES,
    first=st.integers(1, 3),
    kind=KINDS,
    keepdims=st.booleans(),
    negative=st.booleans(),
    seed=st.integers(0, 99),
)
def test_reductions(
    name: str,
    shape: tuple[int, ...],
    first: int,
    kind: Any,
    keepdims: bool,
    negative: bool,
    seed: int,
) -> None:
    x = numbers(shape, seed, kind)
    axis: Any = tuple(range(first, 4))
    given_axis = [a - 4 if negative else a for a in axis]
    more = {} if name == "all" else {"keepdims": keepdims}
    function = getattr(nl, name)
    result = run(lambda t: function(t, given_axis if len(axis) > 1 else given_axis[0], **more), x)
    kept = keepdims and name != "all"
    want = np.asarray(getattr(np, name)(x.astype(np.float64), axis, keepdims=kept or name == "var"))
    if want.ndim == 1:
        want = want[:, None]
    assert result.shape == want.shape
    assert result.dtype == kind
    # Sums in float32 of numbers up to 2, rounded once to the type.
    count = math.prod(shape[first:])
    bound = {"sum": 2 * count, "mean": 4, "var": 8, "prod": 2.0**count}.get(name, 0)
    atol = bound * (count + 4) * rounding(np.float32)
    with np.errstate(over="ignore"):
        want = want.astype(np.float64)
    finite = np.abs(want) <= largest(kind)
    np.testing.assert_allclose(
        result.astype(np.float64)[finite], want[finite], rtol=rounding(kind) + 1e-9, atol=atol
    )


def test_integers_are_summed_in_float32() -> None:
    x = np.full((1, 3), 2**24, np.int32)
    x[0, 1] = 1
    assert run(lambda t: nl.sum(t, 1), x)[0, 0] == 2**25
    assert run(lambda t: nl.sum(t, 1, dtype=nl.float32), x).dtype == np.float32


def test_variance_of_a_view_that_is_not_dense() -> None:
    x = numbers((5, 6, 700), 0)
    result = run(lambda t: nl.var(t.permute((0, 2, 1)), (1, 2)), x)
    np.testing.assert_allclose(result[:, :, 0], x.var((1, 2))[:, None], rtol=1e-6)


def test_all_of_one_element_is_one_or_zero() -> None:
    x = np.array([[5.0], [0.0], [-2.0]], np.float32)
    np.testing.assert_array_equal(run(lambda t: nl.all(t, 1), x), [[1], [0], [1]])


@settings(max_examples=12, deadline=None)
@given(shape=SHAPES, first=st.integers(1, 3), kind=KINDS, seed=st.integers(0, 99))
def test_softmax(shape: tuple[int, ...], first: int, kind: Any, seed: int) -> None:
    x = numbers(shape, seed, kind) * kind(20)
    axis = tuple(range(first, 4))
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    want = e / e.sum(axis, keepdims=True)
    result = run(lambda t: nl.softmax(t, axis), x)
    assert result.dtype == kind
    # The difference to the maximum is rounded before exp: 80 * 2**-24 in the exponent.
    np.testing.assert_allclose(
        result.astype(np.float64), want, rtol=rounding(kind) + 1e-5, atol=rounding(kind) * 1e-3
    )
    np.testing.assert_allclose(
        run(lambda t: nl.softmax(t[:, 0, 0]), x).astype(np.float64).sum(-1), 1, rtol=0.02
    )


@settings(max_examples=12, deadline=None)
@given(shape=SHAPES, first=st.integers(1, 3), kind=KINDS, seed=st.integers(0, 99))
def test_rms_norm(shape: tuple[int, ...], first: int, kind: Any, seed: int) -> None:
    x, w = numbers(shape, seed, kind), numbers(shape, seed + 1, kind)
    axis, n = tuple(range(first, 4)), math.prod(shape[first:])
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).sum(axis, keepdims=True) / n + 1e-3) * w.astype(np.float64)
    result = run(lambda a, b: nl.rms_norm(a, b, axis, n, epsilon=1e-3, dtype=nl.float32), x, w)
    np.testing.assert_allclose(result, want, rtol=(n + 8) * rounding(np.float32), atol=1e-7)
    coarse = run(lambda a, b: nl.rms_norm(a, b, axis, n, 1e-3, None, nl.bfloat16), x, w)
    assert coarse.dtype == kind
    np.testing.assert_allclose(coarse.astype(np.float64), want, rtol=0.05, atol=1e-2)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_target_normalises(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    x = numbers((128, 40), 0)
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * x
    np.testing.assert_allclose(run(lambda t: nl.rms_norm(t, t, 1, 40), x), want, rtol=1e-5)


@pytest.mark.parametrize("axis", [0, (0, 1), 1, (1,), (2, 0), 3, -3, (), "x", None, (1, 1)])
def test_axes_are_the_last_free_ones(axis: Any) -> None:
    def body() -> Any:
        return nl.sum(nl.zeros((4, 3, 2), nl.float32), axis)

    with pytest.raises(NkiError, match=r"nl.sum cannot work along axis .* \(4, 3, 2\).*\[NKI242\]"):
        inside(body)


def test_arguments() -> None:
    with pytest.raises(NkiTypeError, match=r"nl.softmax x must be a tile, got float"):
        nl.softmax(1.0)  # type: ignore[arg-type]
    with pytest.raises(NkiError, match=r"nl.rms_norm takes tiles of one shape.*\[NKI241\]"):
        inside(
            lambda: nl.rms_norm(
                nl.zeros((4, 3), nl.float32), nl.zeros((4, 1), nl.float32), axis=1, n=3
            )
        )
