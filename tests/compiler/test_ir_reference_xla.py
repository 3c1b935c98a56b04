"""The reference meanings of operators that PyTorch lacks in this generality, against XLA's."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronxcc.ir import Graph, Node, TensorType, build, indexing, parameter
from neuronxcc.ir.dtypes import from_numpy
from neuronxcc.ir.reference import evaluate

jax = pytest.importorskip("jax", reason="XLA is what these are compared with")


def run(make: Callable[..., Node], *args: np.ndarray) -> np.ndarray:
    """Build a graph of one result over arrays and evaluate it."""
    params = [parameter(i, TensorType(from_numpy(a.dtype), a.shape)) for i, a in enumerate(args)]
    return evaluate(Graph("t", tuple(params), (make(*params),)), args)[0]


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"strides": (2, 1), "low": (1, 0), "high": (1, 2)},
    {"rhs_dilation": (2, 1), "low": 2, "high": 2},
    {"lhs_dilation": (2, 3), "low": (1, -1), "high": 1},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
    {"strides": 3, "low": (-1, 2), "high": (0, -2), "lhs_dilation": 2, "rhs_dilation": 2},
]


@pytest.mark.parametrize(
    ("exponent", "mantissa"), [(8, 10), (8, 7), (5, 10), (4, 3), (8, 0), (2, 5)]
)
def test_reduce_precision_is_that_of_xla(exponent: int, mantissa: int) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
    x = np.concatenate(
        [
            bits,
            np.array([0.0, -0.0, 1e-40, -1e-40, 1e30, math.inf, -math.inf, math.nan], np.float32),
            rng.normal(size=1000).astype(np.float32),
        ]
    )
    got = run(lambda p: build.reduce_precision(p, exponent, mantissa), x)
    want = np.asarray(jax.lax.reduce_precision(x, exponent, mantissa))
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all()


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolution_is_that_of_xla(options: dict[str, Any], layout: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 4, 9, 8)).astype(np.float32)
    groups = options.get("feature_group_count", 1)
    w = rng.integers(-3, 4, (6, 4 // groups, 3, 2)).astype(np.float32)
    numbers = ("NCHW", "OIHW", "NCHW")
    specs: dict[str, Any] = {}
    if layout == "NHWC":
        x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
        numbers = ("NHWC", "HWIO", "HWNC")
        specs = {"lhs_spec": (0, 3, 1, 2), "rhs_spec": (3, 2, 0, 1), "out_spec": (2, 3, 0, 1)}

    def pair(name: str, default: int) -> tuple[int, int]:
        value = options.get(name, default)
        return (value, value) if isinstance(value, int) else value

    want = jax.lax.conv_general_dilated(
        x, w, pair("strides", 1), list(zip(pair("low", 0), pair("high", 0), strict=True)),
        pair("lhs_dilation", 1), pair("rhs_dilation", 1), numbers, groups,
        options.get("batch_group_count", 1),
    )  # fmt: skip
    got = run(lambda a, b: build.convolution(a, b, **options, **specs), x, w)
    np.testing.assert_array_equal(got, np.asarray(want))


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_reduce_window_is_that_of_xla(kind: str) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (2, 7, 8)).astype(np.float32)
    function, start = {
        "add": (jax.lax.add, 0.0), "max": (jax.lax.max, -math.inf), "min": (jax.lax.min, math.inf),
    }[kind]  # fmt: skip
    want = jax.lax.reduce_window(
        x, start, function, (1, 3, 2), (1, 2, 1), ((0, 0), (1, 2), (0, 1)), (1, 2, 1), (1, 1, 3)
    )
    got = run(
        lambda p: build.reduce_window(
            p, kind, (1, 3, 2), strides=(1, 2, 1), low=(0, 1, 0), high=(0, 2, 1),
            base_dilation=(1, 2, 1), window_dilation=(1, 1, 3),
        ), x,
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.asarray(want))


def test_pad_and_negative_pad_are_those_of_xla() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for low, high, interior in [
        ((1, 2), (0, 1), (1, 0)),
        ((-1, 0), (0, -2), (2, 1)),
        ((-3, 1), (4, -4), (0, 0)),
    ]:
        want = jax.lax.pad(x, np.float32(7), list(zip(low, high, interior, strict=True)))
        got = run(lambda p: build.pad(p, 7.0, low, high, interior), x)  # noqa: B023
        np.testing.assert_array_equal(got, np.asarray(want))


def test_gather_and_scatter_are_those_of_xla() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    indices = np.array([[0, 1], [3, 5], [9, 2], [-1, 4]], np.int32)
    dims = jax.lax.GatherDimensionNumbers((1,), (0,), (0, 1))
    want = jax.lax.gather(x, indices, dims, (1, 2), mode="clip")
    got = run(
        lambda p, i: indexing.gather(
            p, i, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1),
            slice_sizes=(1, 2),
        ), x, indices,
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.asarray(want))
    updates = np.arange(8, dtype=np.float32).reshape(4, 2)
    numbers = jax.lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    summed = jax.lax.scatter_add(x, indices, updates, numbers, mode="drop")
    got = run(
        lambda p, i, u: indexing.scatter(
            p, i, u, kind="add", update_window_dims=(1,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0, 1),
        ), x, indices, updates,
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.asarray(summed))
