"""Calls of ATen's operators that the device takes apart: special functions, pooling with places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import special

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.ir.op import Op
from nki.device import lower

from .device_tools import roundings

# A dozen functions and products in float32, each with an error of half a rounding to one.
ROUNDINGS = 4


def called(
    target: str, args: tuple[Any, ...], given: Sequence[Node], *types: TensorType
) -> tuple[Node, ...]:
    """The results of a call."""
    node = Node.make(
        Op.CUSTOM_CALL, types, tuple(given),
        {"target": target, "args": args, "kwargs": (), "device": True},
    )  # fmt: skip
    return build.results(node) if len(types) > 1 else (node,)


def computed(
    target: str, args: tuple[Any, ...], *arrays: np.ndarray, dtype: DType = DType.F32
) -> np.ndarray:
    """What instructions give for arrays of one shape."""
    kind = TensorType(dtype, arrays[0].shape)
    given = [parameter(i, kind) for i in range(len(arrays))]
    program = lower(
        Graph("test", tuple(given), called(target, args, given, kind)), "trn2", passes=False
    )
    assert not program.missing, [section.reason for section in program.missing]
    (found,) = program.run(arrays, by="reference")
    return found


def cast(wanted: np.ndarray, dtype: DType = DType.F32) -> np.ndarray:
    with np.errstate(over="ignore"):
        return wanted.astype(np.float32).astype(dtype.numpy)


# --- modified Bessel functions -------------------------------------------------------------------

SIZES = np.concatenate(
    [np.linspace(0, 9, 2001), np.linspace(9, 100, 2001), np.logspace(-38, 38, 300), [np.inf]]
)
BESSEL = np.concatenate([SIZES, -SIZES, [np.nan]])


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("function", [special.i0, special.i0e, special.i1, special.i1e])
def test_bessel_functions(function: Callable[[np.ndarray], np.ndarray], dtype: DType) -> None:
    """Over their range: near 0, where the two formulas meet, up to where they are infinite."""
    name = function.__name__
    x = BESSEL.astype(dtype.numpy)
    target = "aten::i0.default" if name == "i0" else f"aten::special_{name}.default"
    found = computed(target, (Operand(0),), x, dtype=dtype)
    wanted = cast(function(x.astype(np.float64)), dtype)
    # Float32 ends a little before: the last product is not of a number below the least.
    assert roundings(found, wanted, 1e-37) <= ROUNDINGS


# --- zeta and polygamma --------------------------------------------------------------------------


def zeta(s: np.ndarray | float, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hurwitz's zeta in float64, and the size of the terms that it is a difference of.

    Where q is negative, all its terms are added up.
    """
    s = np.broadcast_to(np.asarray(s, np.float64), q.shape)
    below = np.maximum(np.ceil(-np.nan_to_num(q)), 0.0)
    positive = special.zeta(s, q + below)
    total, size = positive.copy(), abs(positive)
    with np.errstate(all="ignore"):
        for step in range(int(below.max())):
            term = np.where(step < below, (q + step) ** -s, 0.0)
            total, size = total + term, size + abs(term)
    return total, size


def compare_sums(found: np.ndarray, total: np.ndarray, size: np.ndarray, most: float) -> None:
    """Roundings of the terms that are added up, which are more than those of their sum."""
    wanted = cast(total)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        off = abs(found.astype(np.float64) - wanted)
        least = np.maximum(size, np.finfo(np.float32).tiny) * np.finfo(np.float32).eps
        worst = np.where(same, 0.0, off / least)
    assert np.nanmax(worst) <= most
    assert not np.isnan(worst).any()


# Not whole, so that there are no poles; far from 0, where the last digits say where between them.
NEGATIVE = -np.concatenate([np.linspace(1e-3, 30, 2000), np.logspace(-9, 2, 100)])
POSITIVE = np.concatenate([np.linspace(1e-3, 30, 2000), np.logspace(-30, 30, 400)])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 20, 25])
def test_polygamma(n: int) -> None:
    x = np.concatenate([POSITIVE, NEGATIVE]).astype(np.float32)
    wide = x.astype(np.float64)
    whole = wide == np.round(wide)
    x, wide = x[~whole | (wide > 0)], wide[~whole | (wide > 0)]
    total, size = zeta(float(n + 1), wide)
    factor = math.factorial(n) * (1.0 if n % 2 else -1.0)
    with np.errstate(over="ignore"):
        total, size = total * factor, size * abs(factor)
    found = computed("aten::polygamma.default", (n, Operand(0)), x)
    # Each term is a power: the error of its base counts n + 1 times.
    compare_sums(found, total, size, ROUNDINGS + (n + 1) / 2)


def test_polygamma_at_poles_and_of_order_0() -> None:
    x = np.array([0.0, -0.0, -1.0, -3.0, -1e10, np.nan], np.float32)
    found = computed("aten::polygamma.default", (1, Operand(0)), x)
    np.testing.assert_array_equal(found, [np.inf] * 5 + [np.nan])
    found = computed("aten::polygamma.default", (2, Operand(0)), x)
    np.testing.assert_array_equal(found, [-np.inf] * 5 + [np.nan])
    x = np.linspace(0.5, 30, 500).astype(np.float32)
    found = computed("aten::polygamma.default", (0, Operand(0)), x)
    assert roundings(found, cast(special.digamma(x.astype(np.float64))), 4.0) <= ROUNDINGS


def test_an_order_whose_terms_are_no_float32_stays_a_call() -> None:
    x = parameter(0, TensorType(DType.F32, (5,)))
    made = called("aten::polygamma.default", (29, Operand(0)), (x,), x.type)
    (section,) = lower(Graph("test", (x,), made), "trn2", passes=False).missing
    assert "custom_call" in section.reason


@pytest.mark.parametrize(("low", "high"), [(1.001, 3.0), (3.0, 40.0)])
def test_zeta(low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    s = rng.uniform(low, high, 4096).astype(np.float32)
    q = np.exp(rng.uniform(-4, 6, 4096)).astype(np.float32)
    total, size = zeta(s.astype(np.float64), q.astype(np.float64))
    found = computed("aten::special_zeta.default", (Operand(0), Operand(1)), s, q)
    # A pole at 1: what s is away from it has few digits, and all of them are exact.
    compare_sums(found, total, size, ROUNDINGS + high / 2)


def test_zeta_where_it_is_odd() -> None:
    """Whole and other powers of negative numbers, poles, powers of 1 and less, by number too."""
    s, q = (
        np.array(values, np.float32)
        for values in zip(*itertools.product(
            [-2.0, 0.5, 1.0, 1.5, 2.0, 3.0, 8.0, np.nan],
            [-7.25, -3.5, -2.0, -0.125, -0.0, 0.0, 0.25, 1.0, 9.0, np.nan],
        ), strict=True)
    )  # fmt: skip
    with np.errstate(all="ignore"):
        total, size = zeta(np.where(s > 1, s, 2.0).astype(np.float64), q.astype(np.float64))
    pole = (q <= 0) & (q == np.round(q))
    total = np.where(pole, np.inf, total)
    total = np.where(((q < 0) & (s != np.round(s)) & ~pole) | (s < 1), np.nan, total)
    total = np.where(s == 1, np.inf, total)
    wrong = (np.isnan(s) & ~pole) | (np.isnan(q) & (s != 1))
    total, size = np.where(wrong, np.nan, total), np.where(np.isfinite(size), size, 1.0)
    found = computed("aten::special_zeta.default", (Operand(0), Operand(1)), s, q)
    compare_sums(found, total, size, ROUNDINGS)
    of_number = computed("aten::special_zeta.self_scalar", (3.0, Operand(0)), q[s == 3])
    compare_sums(of_number, total[s == 3], size[s == 3], ROUNDINGS)
    by_number = computed("aten::special_zeta.other_scalar", (Operand(0), 9.0), s[q == 9])
    compare_sums(by_number, total[q == 9], size[q == 9], ROUNDINGS)


# --- pooling with places -------------------------------------------------------------------------


def pooled(
    x: np.ndarray, windows: Sequence[Sequence[Sequence[int]]]
) -> tuple[np.ndarray, np.ndarray]:
    """The largest of each window and its place, window by window.

    Args:
        x: two dimensions of images, and the image's.
        windows: for each dimension of an image the places along it of every window.
    """
    image = x.shape[2:]
    shape = (*x.shape[:2], *map(len, windows))
    values, places = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    for at in np.ndindex(*shape):
        found: tuple[Any, int] | None = None
        chosen = [along[n] for along, n in zip(windows, at[2:], strict=True)]
        for place in itertools.product(*chosen):
            if any(not 0 <= p < n for p, n in zip(place, image, strict=True)):
                continue
            value = x[at[:2] + place]
            if found is None or value > found[0] or np.isnan(value):
                found = value, int(np.ravel_multi_index(place, image))
        assert found is not None
        values[at], places[at] = found
    return values, places


def check_pooling(
    target: str, args: tuple[Any, ...], x: np.ndarray, dtype: DType,
    windows: Sequence[Sequence[Sequence[int]]],
) -> None:  # fmt: skip
    wanted = pooled(x, windows)
    given = parameter(0, TensorType(dtype, x.shape))
    types = [TensorType(kind, wanted[0].shape) for kind in (dtype, DType.S64)]
    graph = Graph("test", (given,), called(target, (Operand(0), *args), (given,), *types))
    program = lower(graph, "trn2", passes=False)
    assert not program.missing, [section.reason for section in program.missing]
    for got, expected in zip(program.run([x], by="reference"), wanted, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def images(rng: np.random.Generator, rank: int, dtype: DType) -> np.ndarray:
    """Small numbers, so that there are many ties, the least one often, and some NaN."""
    shape = (*rng.integers(1, 3, 2), *rng.integers(3, 11, rank))
    x = rng.integers(-3, 3, shape).astype(dtype.numpy)
    if dtype.is_float:
        x[rng.random(shape) < 0.3] = -np.inf
        x[rng.random(shape) < 0.05] = np.nan
    return x


DTYPES = (DType.F32, DType.BF16, DType.S32)


@pytest.mark.parametrize("seed", range(20))
def test_largest_of_windows(seed: int) -> None:
    """Steps, padding, holes, windows that begin in the image and end behind it."""
    rng = np.random.default_rng(seed)
    rank, dtype = 2 + seed % 2, DTYPES[seed % len(DTYPES)]
    x = images(rng, rank, dtype)
    width, step, hole = (rng.integers(1, 4, rank).tolist() for _ in range(3))
    hole = [min(h, max(1, (n - 1) // max(1, w - 1)))
            for h, n, w in zip(hole, x.shape[2:], width, strict=True)]  # fmt: skip
    pad = [int(rng.integers(0, w // 2 + 1)) for w in width]
    up = bool(rng.integers(2))
    windows = []
    for extent, w, s, h, p in zip(x.shape[2:], width, step, hole, pad, strict=True):
        begins = range(-p, extent + p, s)
        last = extent + p - h * (w - 1)  # where a window would end behind all padding
        kept = [b for b in begins if b < last]
        if up and begins[len(kept) - 1] != last - 1 and kept[-1] + s < extent:
            kept.append(kept[-1] + s)
        windows.append([[b + n * h for n in range(w)] for b in kept])
    args = (*(tuple(v) for v in (width, step, pad, hole)), up)
    check_pooling(f"aten::max_pool{rank}d_with_indices.default", args, x, dtype, windows)


@pytest.mark.parametrize("seed", range(20))
def test_largest_of_as_many_windows_as_asked_for(seed: int) -> None:
    """More windows than elements, one window, and what divides evenly or not."""
    rng = np.random.default_rng(seed)
    rank, dtype = 2 + seed % 2, DTYPES[seed % len(DTYPES)]
    x = images(rng, rank, dtype)
    sizes = rng.integers(1, 9, rank).tolist()
    windows = [
        [range(math.floor(i * n / m), math.ceil((i + 1) * n / m)) for i in range(m)]
        for n, m in zip(x.shape[2:], sizes, strict=True)
    ]
    check_pooling(f"aten::adaptive_max_pool{rank}d.default", (tuple(sizes),), x, dtype, windows)


def test_windows_of_too_many_places_stay_a_call() -> None:
    x = parameter(0, TensorType(DType.F32, (1, 1, 2, 600)))
    args = (Operand(0), (1, 600), (1, 600), (0, 0), (1, 1), False)
    types = [TensorType(kind, (1, 1, 2, 1)) for kind in (DType.F32, DType.S64)]
    made = called("aten::max_pool2d_with_indices.default", args, (x,), *types)
    (section,) = lower(Graph("test", (x,), made), "trn2", passes=False).missing
    assert "custom_call" in section.reason
