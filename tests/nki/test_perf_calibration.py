"""The calibration: its kernels compute what they should, and its page says what the model says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuronxcc.perf import PARAMETERS, Parameters
from nki.first_generation.launch import jit
from nki.perf.calibration.fit import GRID, PRIOR, best, errors, left_out, tabulated
from nki.perf.calibration.kernels import KERNELS, SHAPES
from nki.perf.calibration.rows import predicted, rows, spearman, stream_for, variants

Array = npt.NDArray[Any]
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def normalised(x: Array, gain: Array) -> Array:
    result: Array = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * gain
    return result


def adamw(theta: Array, grad: Array, m: Array, v: Array) -> Array:
    first = 0.01 * (0.9 * m + 0.1 * grad)
    second = 0.999 * v + 0.001 * grad * grad
    result: Array = theta - 1e-5 * theta - first / (np.sqrt(1000 * second) + 1e-8)
    return result


def scan(delta: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    result: Array = np.zeros_like(delta)
    for state in range(a.shape[1]):
        at = np.zeros(len(delta))
        for i in range(delta.shape[1]):
            at = np.exp(delta[:, i] * a[:, state]) * at + delta[:, i] * u[:, i] * b[state, i]
            result[:, i] += at * c[state, i]
    return result


MEANINGS: dict[str, tuple[Any, Any]] = {
    "silu": (lambda x: x * sigmoid(x), ((128, 1024),)),
    "adamw": (adamw, ((160, 1024),) * 4),
    "matmul": (lambda x, w: x @ w, ((128, 1024), (1024, 1024))),
    "swiglu": (
        lambda x, up, down, gate: ((x @ gate) * sigmoid(x @ gate) * (x @ up)) @ down,
        ((512, 1024), (1024, 1024), (1024, 1024), (1024, 1024)),
    ),
    "add_rmsnorm_matmul": (
        lambda x, w, z, g: normalised(x + z, g) @ w,
        ((128, 256), (256, 512), (128, 256), (1, 256)),
    ),
    "matmul_add_rmsnorm": (
        lambda x, w, z, g: normalised(x @ w + z, g),
        ((128, 256), (256, 512), (128, 512), (1, 512)),
    ),
} | dict.fromkeys(
    ("mamba", "fused_mamba_v1", "fused_mamba_v2"),
    (scan, ((128, 32), (128, 32), (128, 2), (2, 32), (2, 32))),
)
# Two parts of a sequence, the second one from where the first one ends.
MEANINGS["fused_mamba_v3"] = scan, ((128, 1024), (128, 1024), (128, 2), (2, 1024), (2, 1024))


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_the_measured_one_does(name: str) -> None:
    meaning, shapes = MEANINGS[name]
    rng = np.random.default_rng(0)
    # Positive, as squares of gradients are; small, so that sums stay near 1.
    arrays = [(rng.random(shape) / 8).astype(np.float32) for shape in shapes]
    found = jit(KERNELS[name], platform_target="trn1")(*arrays)
    expected = meaning(*(array.astype(np.float64) for array in arrays))
    # float32 sums of up to 1024 terms; the engine's functions are good to some units.
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def test_rows_have_kernels_and_sources() -> None:
    found = rows()
    assert len(found) == 13
    assert {row.kernel for row in (*found, *variants())} == KERNELS.keys() == SHAPES.keys()
    for row in (*found, *variants()):
        assert row.source.startswith(("AccelOpt ", "fused_mamba"))
        assert row.measured > 0


def test_the_page_says_what_the_model_says() -> None:
    """Of the rows that are quick to record."""
    page = PAGE.read_text()
    chosen = [row for row in rows() if row.name in {"silu", "mamba", "fused_mamba_v1 256 512"}]
    assert len(chosen) == 3
    streams = [(row, stream_for(row)) for row in chosen]
    before = errors(streams, Parameters(**PRIOR))
    for (row, first, off), (_, made, error) in zip(
        before, errors(streams, Parameters()), strict=True
    ):
        line = f"| {row.measured:.0f} | {first:.0f} | {off:+.0%} | {made:.0f} | {error:+.0%} |"
        assert f"| {row.name} |" in page
        assert line in page


def test_traffic_is_that_of_the_profile() -> None:
    (row,) = (row for row in rows() if row.kernel == "silu")
    made = predicted(row, stream_for(row), Parameters())
    assert row.hbm_mb is not None
    assert made.hbm_bytes / 1e6 == pytest.approx(row.hbm_mb, rel=0.01)


def test_the_fit_finds_the_least_error_and_does_without_a_family() -> None:
    chosen = [row for row in rows() if row.name in {"silu", "fused_mamba_v1 256 512"}]
    streams = [(row, stream_for(row)) for row in chosen]
    table = tabulated(streams)
    assert len(table) == 11 * 8
    # Each point is what the model says there.
    point = (60.0, 5.0)
    made = Parameters(**dict(zip(GRID, point, strict=True)))
    for (row, error), (_, _, off) in zip(table[point], errors(streams, made), strict=True):
        assert np.expm1(error) == pytest.approx(off), row.name
    sums = {point: sum(error * error for _, error in found) for point, found in table.items()}
    assert sums[best(table)] == min(sums.values())
    # Without a row the fit cannot be nearer to it than with it alone.
    for number, row in enumerate(chosen):
        alone = min(abs(found[number][1]) for found in table.values())
        assert abs(np.log1p(left_out(table)[row.name])) >= alone - 1e-12
    (silu,) = (row for row in chosen if row.kernel == "silu")
    without = {row.name: error for row, error in table[best(table, "silu")]}
    assert left_out(table)["silu"] == pytest.approx(np.expm1(without[silu.name]))


def test_what_is_fitted_is_said_to_be() -> None:
    said = {name for name, row in PARAMETERS.items() if row.known == "fitted"}
    # The launch is what the published latencies and device times differ by.
    assert said == {*PRIOR, "launch"}


def test_rank_correlation() -> None:
    numbers = np.random.default_rng(0).permutation(12).astype(float)
    assert spearman([(n, n * n) for n in numbers]) == pytest.approx(1)
    assert spearman([(n, -n) for n in numbers]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4.
    assert spearman([(0, 0), (5, 1), (5, 2), (7, 3)]) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    other = np.random.default_rng(1).permutation(12).astype(float)
    expected = np.corrcoef(numbers, other)[0, 1]  # they are their own ranks
    assert spearman(list(zip(numbers, other, strict=True))) == pytest.approx(expected)


@pytest.mark.slow
def test_variants_are_in_the_measured_order() -> None:
    """Of those that are quick to record; the page's table has the others."""
    chosen = [row for row in variants() if row.arguments in {(4096, 512), (4096, 1024)}]
    assert len(chosen) == 5
    made = [row.comparable(predicted(row, stream_for(row), Parameters())) for row in chosen]
    page = PAGE.read_text()
    for row, us in zip(chosen, made, strict=True):
        line = f"| {row.name} | {row.measured:.0f} | {us:.0f} | {us / row.measured - 1:+.0%} |"
        assert line in page
    assert spearman([(row.measured, us) for row, us in zip(chosen, made, strict=True)]) >= 0.9
    for length in (512, 1024):
        first = {
            row.kernel: us
            for row, us in zip(chosen, made, strict=True)
            if row.arguments[1] == length
        }
        assert first["fused_mamba_v2"] >= first["fused_mamba_v3"]
        assert first.get("fused_mamba_v1", np.inf) > first["fused_mamba_v2"]


def test_the_page_has_all_variants_in_the_measured_order() -> None:
    lines = [line.split("|") for line in PAGE.read_text().splitlines()]
    table = {
        cells[1].strip(): (float(cells[2]), float(cells[3]))
        for cells in lines
        if len(cells) == 6 and cells[1].startswith(" fused_mamba_v")
    }
    assert table.keys() == {row.name for row in variants()}
    assert {table[row.name][0] for row in variants()} == {row.measured for row in variants()}
    assert spearman(list(table.values())) >= 0.9
    for name, (_, us) in table.items():
        tiled = table.get(name.replace("_v2", "_v3"))
        assert tiled is None or us >= tiled[1]
