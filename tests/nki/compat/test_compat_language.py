"""The functions of the first generation's language against NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.first_generation.dtypes import promote, scalar_dtype
from tests.nki.compat.compat_tools import Array, close, random, returning

UNARY: dict[str, Any] = {
    "abs": np.abs, "arctan": np.arctan, "ceil": np.ceil, "copy": lambda x: x, "cos": np.cos,
    "erf": np.vectorize(math.erf), "exp": np.exp, "floor": np.floor, "negative": np.negative,
    "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sign": np.sign, "silu": lambda x: x / (1 + np.exp(-x)), "sin": np.sin,
    "softplus": lambda x: np.log1p(np.exp(x)), "square": np.square, "tan": np.tan,
    "tanh": np.tanh, "trunc": np.trunc, "reciprocal": lambda x: 1 / x,
    "logical_not": np.logical_not,
}  # fmt: skip
POSITIVE: dict[str, Any] = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
@pytest.mark.filterwarnings("ignore:.*outside of its documented range.*")
def test_functions_of_one_tile(name: str) -> None:
    a = (random(8, 16) - np.float32(0.5)) * np.float32(1.5 if name == "tan" else 3)
    function = UNARY.get(name)
    if function is None:
        a, function = np.abs(a), POSITIVE[name]
    want = function(a.astype(float))
    # Compositions of a few steps; the cosine cancels, so its error is absolute.
    np.testing.assert_allclose(
        returning(getattr(nl, name))(a).astype(float), want, rtol=16 * 2.0**-24, atol=8 * 2.0**-24
    )


ROUNDING = st.sampled_from(
    [0.0, -0.5, 0.5, 1.5, 2.5, -2.5, 7.999999, -0.001, 2**22 + 0.5, 2.0**23, -(2.0**31), 1e30]
)


@given(st.lists(ROUNDING | st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4))
@settings(max_examples=25)
def test_rounding_is_exact(numbers: list[float]) -> None:
    a = np.array([numbers], np.float32)
    for name, function in (("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc)):
        np.testing.assert_array_equal(returning(getattr(nl, name))(a), function(a))


BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "equal",
          "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
          "logical_or", "logical_xor", "mod", "fmod"]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tiles(name: str) -> None:
    a = np.round((random(8, 16) - np.float32(0.5)) * 40) / np.float32(4)
    b = np.round(random(8, 16, seed=1) * 8) / np.float32(4) + np.float32(0.25)
    if name == "power":
        a = np.abs(a)
    got = returning(getattr(nl, name))(a, b)
    want = getattr(np, name)(a.astype(float), b.astype(float))
    if name.startswith(("equal", "not", "greater", "less", "logical")):
        assert got.dtype.itemsize == 1
    np.testing.assert_allclose(got.astype(float), want, rtol=4 * 2.0**-24, atol=8 * 2.0**-24)


REDUCTIONS = ["sum", "max", "min", "prod", "mean", "var"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [1, -1, [1, 2], (2,), [1]])
def test_reductions(name: str, axis: Any) -> None:
    a = random(8, 3, 5) + np.float32(0.5)
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    want = getattr(np, name)(a.astype(float), axis=axes)
    got = returning(lambda x: getattr(nl, name)(x, axis=axis))(a)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=64 * 2.0**-24)


def test_all_and_keepdims() -> None:
    a = np.array([[1, 2], [0, 3], [0, 0]], np.float32)
    np.testing.assert_array_equal(
        returning(lambda x: nl.all(x, axis=[1]))(a).astype(bool), [[True], [False], [False]]
    )
    kept = returning(lambda x: nl.sum(x, axis=[2], keepdims=True))(random(4, 3, 5))
    assert kept.shape == (4, 3, 1)


def test_mean_of_integers_is_float() -> None:
    a = np.arange(12, dtype=np.int32).reshape(2, 6)
    got = returning(lambda x: nl.mean(x, axis=[1]))(a)
    assert got.dtype == np.float32
    close(got, a.mean(1, keepdims=True), rounded=2)


def test_mean_counts_what_a_mask_leaves() -> None:
    def kernel(x: Any) -> Any:
        return nl.mean(x, axis=[1], mask=nl.arange(16)[None, :] < 5)

    a = random(8, 16)
    close(returning(kernel)(a), a[:, :5].astype(float).mean(1, keepdims=True), rounded=8)


def test_softmax_and_rms_norm() -> None:
    a, w = random(8, 16, scale=9), random(1, 16, seed=1)
    x = a.astype(float)
    want = np.exp(x - x.max(1, keepdims=True))
    want /= want.sum(1, keepdims=True)
    np.testing.assert_allclose(
        returning(lambda t: nl.softmax(t, axis=-1))(a), want, rtol=64 * 2.0**-24, atol=1e-30
    )
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * w
    close(returning(lambda t, v: nl.rms_norm(t, v, 1, 16))(a, w), want, rounded=24)


def test_where_takes_tiles_and_numbers() -> None:
    a, b = random(8, 4), random(8, 4, seed=1)
    np.testing.assert_array_equal(
        returning(lambda x, y: nl.where(x > y, x, 0.0))(a, b), np.where(a > b, a, np.float32(0))
    )
    np.testing.assert_array_equal(returning(lambda x, y: nl.where(x - y, -1.0, y))(a, a), a)


def test_random_numbers_repeat_with_their_seed() -> None:
    @nki.jit
    def kernel() -> Any:
        made = []
        for seed in (7, 7, 8):
            nl.random_seed(seed)
            made.append(nl.rand((128, 64)))
        return tuple(made)

    first, again, other = kernel()
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99
    assert first.min() >= 0
    assert first.max() < 1
    assert abs(first.mean() - 0.5) < 6 / math.sqrt(12 * first.size)  # six standard deviations


def test_constants_are_in_hbm_and_shared() -> None:
    @nki.jit
    def kernel() -> Any:
        table = np.arange(12, dtype=np.float32).reshape(3, 4)
        one, two = nl.shared_constant(table), nl.shared_constant(table.copy())
        assert one.blocks[0].storage is two.blocks[0].storage
        identity = nl.shared_identity_matrix(4, dtype=nl.bfloat16)
        return nl.load(one), nl.load(identity, dtype=np.float32)

    table, identity = kernel()
    np.testing.assert_array_equal(table, np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(identity, np.eye(4))


def test_static_cast() -> None:
    assert nl.static_cast(2.7, np.int32) == 2
    cast = nl.static_cast(np.array([1.00390625]), nl.bfloat16)
    assert cast.dtype == ml_dtypes.bfloat16
    a = random(4, 4)
    got = returning(lambda x: nl.static_cast(x, nl.float16))(a)
    np.testing.assert_array_equal(got, a.astype(np.float16))


PROMOTIONS = [
    ("int32", "float16", "float16"), ("uint16", "tfloat32", "tfloat32"),
    ("float32", "tfloat32", "float32"), ("float32", "bfloat16", "float32"),
    ("float16", "bfloat16", "float32"), ("float8_e4m3", "float16", "float16"),
    ("float8_e4m3", "bfloat16", "bfloat16"), ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ("int16", "int32", "int32"), ("uint8", "uint16", "uint16"), ("uint16", "int32", "int32"),
    ("int8", "uint8", "int16"), ("int8", "uint16", "int32"), ("int32", "uint32", "float32"),
    ("bool_", "int8", "int16"), ("int8", "int8", "int8"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "want"), PROMOTIONS)
def test_types_are_promoted_as_documented(a: str, b: str, want: str) -> None:
    assert promote(a, b) == promote(b, a) == want


NUMBERS = [(True, "uint8"), (2, "int32"), (1.5, "float32"), (np.float16(2), "float16"),
           (np.int8(2), "int8"), (np.float64(2), "float32")]  # fmt: skip


@pytest.mark.parametrize(("number", "want"), NUMBERS)
def test_numbers_have_types(number: Any, want: str) -> None:
    assert scalar_dtype(number) == want


def test_dtypes_are_numpys() -> None:
    seen = []

    @nki.jit
    def kernel(a: Any) -> Any:
        tile = nl.load(a)
        wide = nl.add(tile, 1.2)
        seen.extend([tile.dtype, nl.add(tile, np.float16(2)).dtype, wide.dtype])
        assert (tile.shape, tile.ndim, tile.itemsize, len(tile)) == ((4, 4), 2, 2, 4)
        return wide

    kernel(random(4, 4).astype(np.float16))
    assert seen == [np.float16, np.float16, np.float32]
    assert nl.bfloat16 == np.dtype("bfloat16")
    assert nl.fp32.min == np.finfo(np.float32).min
    assert nl.bfp16.min == -np.inf
    assert nl.finfo(nl.bfloat16).bits == 16
    assert np.ones(3, nl.float8_e5m2).itemsize == 1


def test_tensor_methods() -> None:
    def kernel(x: Any) -> Any:
        y = x.reshape((4, 2, 3)).assert_shape((4, 2, 3))
        return (
            y.astype(np.float16), y.expand_dims(3), nl.expand_dims(x, 1),
            x[:, 0].broadcast_to((4, 5)), x[0:1, :].broadcast_to((4, 6)), x.view(np.int32),
        )  # fmt: skip

    a: Array = random(4, 6)
    y = a.reshape(4, 2, 3)
    wanted = (y.astype(np.float16), y[..., None], a[:, None], np.repeat(a[:, :1], 5, 1),
              np.repeat(a[:1], 4, 0), a.view(np.int32))  # fmt: skip
    for got, want in zip(returning(kernel)(a), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_value_of_an_index_tile_within_a_partition() -> None:
    def kernel(x: Any, where: Any) -> Any:
        rows, columns = nl.arange(8)[:, None], nl.arange(3)[None, :]
        picked = nl.copy(x[rows, where + 2 * columns])
        moved = nl.zeros((8, 10), dtype=x.dtype)
        nisa.tensor_copy_dynamic_dst(dst=moved[rows, where + columns], src=picked)
        return nisa.tensor_copy_dynamic_src(x[rows, columns + where]), picked, moved

    a, where = random(8, 10), np.array([[4]], np.int32)
    straight, picked, dst = returning(kernel)(a, where)
    np.testing.assert_array_equal(straight, a[:, 4:7])
    np.testing.assert_array_equal(picked, a[:, 4:9:2])
    want = np.zeros((8, 10), np.float32)
    want[:, 4:7] = a[:, 4:9:2]
    np.testing.assert_array_equal(dst, want)
