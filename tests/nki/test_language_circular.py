"""Sine, cosine and tangent of angles up to 2**23 against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki.language as first
import nki.isa as nisa
import nki.language as nl
from nki.language.circular import LARGEST
from tests.nki.compat.compat_tools import returning
from tests.nki.language_tools import Array, rounding, run

NAMES = ("sin", "cos", "tan")
_finfo: Any = ml_dtypes.finfo
SINGLE = rounding(np.float32)


@st.composite
def angles(draw: st.DrawFn) -> Array:
    """Angles of any size and sign, half of them next to multiples of pi/2."""
    kind = draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.int32]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    top = math.log2(60000 if kind is np.float16 else LARGEST)
    size = np.exp2(rng.uniform(draw(st.sampled_from([-30.0, 0.0, 13.0])), top, (32, 64)))
    near = np.round(size / (math.pi / 2)) * (math.pi / 2)
    found = np.where(rng.random(size.shape) < 0.5, size, near) * rng.choice([-1, 1], size.shape)
    limited: Array = np.clip(found, -LARGEST, LARGEST).astype(kind)
    return limited


def bound(name: str, x: Array, kind: Any) -> tuple[Array, Array]:
    """Return the function in float64 and how far a result in float32, then of `kind`, may be off.

    What is left of an angle is off by the last differences, relative to itself, and by one product
    of up to 2**-10; the engine's sine rounds once.
    """
    sine, cosine = (6 * SINGLE + 2.0**-33 / np.maximum(abs(f(x)), 1e-30) for f in (np.sin, np.cos))
    error = {"sin": sine, "cos": cosine, "tan": sine + cosine + 2 * SINGLE}[name]
    want = getattr(np, name)(x)
    least = float(_finfo(kind).smallest_subnormal)
    return want, abs(want) * (error + rounding(kind)) + least


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("generation", ["first", "second"])
@pytest.mark.parametrize("name", NAMES)
def test_angles_up_to_the_largest(name: str, generation: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(x=angles())
    def check(x: Array) -> None:
        kind = np.float32 if x.dtype == np.int32 else x.dtype.type
        if generation == "first":
            got = returning(lambda t: getattr(first, name)(t, dtype=kind))(x)
        else:
            got = run(lambda t: getattr(nl, name)(t, dtype=kind), x)
        assert got.dtype == kind
        want, off = bound(name, x.astype(np.float64), kind)
        with np.errstate(over="ignore"):
            finite = np.isfinite(want.astype(kind))  # a tangent may be too large for float16
        assert (abs(got.astype(np.float64) - want) <= off)[finite].all()

    check()


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_beyond_the_largest_angle_results_stay_in_range(name: str) -> None:
    x = np.exp2(np.linspace(23, 127.9, 512)).astype(np.float32)
    x = np.concatenate([x, -x, [np.inf, -np.inf]])[None].astype(np.float32)
    assert (abs(run(getattr(nl, name), x)) <= 1).all()
    assert np.isnan(run(getattr(nl, name), np.full((1, 1), np.nan, np.float32))).all()


@pytest.mark.usefixtures("executor")
def test_the_instruction_reduces_no_argument() -> None:
    def sine(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.activation(out, nl.sin, x)
        return out

    assert run(sine, np.full((1, 1), 9.0, np.float32))[0, 0] == pytest.approx(27.65, abs=0.01)


def test_zeros_keep_their_sign() -> None:
    x = np.array([[0.0, -0.0]], np.float32)
    np.testing.assert_array_equal(np.signbit(run(nl.sin, x)), [[False, True]])
