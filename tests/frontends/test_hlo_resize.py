"""Resizing against PyTorch, and against TensorFlow's definition written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.ir.reference import evaluate
from tests.frontends.hlo_text import natively
from tests.frontends.modules import custom

SIZES = st.integers(1, 9)


def image(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(height * 10 + width)
    return rng.standard_normal((2, height, width, 3)).astype(np.float32)


def resized(target: str, x: np.ndarray, size: tuple[int, int], config: bytes) -> np.ndarray:
    types = [f"f32[{','.join(map(str, s))}]" for s in (x.shape, (2, *size, 3))]
    (value,) = evaluate(import_hlo(custom(target, types[:1], types[1], config)).graph, [x])
    return value


def by_torch(x: np.ndarray, size: tuple[int, int], mode: str, *, align: bool) -> np.ndarray:
    given_ = torch.from_numpy(x).permute(0, 3, 1, 2)
    corners = align if mode == "bilinear" else None
    made = functional.interpolate(given_, size, mode=mode, align_corners=corners)
    return made.permute(0, 2, 3, 1).numpy()


@settings(max_examples=25, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, st.booleans())
def test_bilinear(height: int, width: int, high: int, wide: int, align: bool) -> None:
    x = image(height, width)
    got = resized("ResizeBilinear", x, (high, wide), b'"10"' if align else b'"01"')
    expected = by_torch(x, (high, wide), "bilinear", align=align)
    # PyTorch computes places in float32: an error of some roundings of up to 9.
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_bilinear_from_the_corner() -> None:
    x = image(4, 6)
    got = resized("ResizeBilinear", x, (8, 3), b"00")
    expected = np.empty((2, 8, 3, 3), np.float32)
    for i in range(8):
        for j in range(3):
            top, left = i * 4 / 8, j * 6 / 3
            i0, j0 = math.floor(top), math.floor(left)
            i1, j1 = min(i0 + 1, 3), min(j0 + 1, 5)
            upper = x[:, i0, j0] + (x[:, i0, j1] - x[:, i0, j0]) * (left - j0)
            lower = x[:, i1, j0] + (x[:, i1, j1] - x[:, i1, j0]) * (left - j0)
            expected[:, i, j] = upper + (lower - upper) * (top - i0)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, st.sampled_from(["00", "01", "10"]))
def test_nearest_and_its_gradient(
    height: int, width: int, high: int, wide: int, config: str
) -> None:
    def place(i: int, old: int, new: int) -> int:
        if config == "10":
            return (2 * i * (old - 1) + new - 1) // (2 * (new - 1)) if new > 1 else 0
        return i * old // new if config == "00" else (2 * i + 1) * old // (2 * new)

    x = image(height, width)
    rows = [min(place(i, height, high), height - 1) for i in range(high)]
    columns = [min(place(i, width, wide), width - 1) for i in range(wide)]
    if config == "10" and 1 in (high, wide):
        return  # nothing to align with
    got = resized("ResizeNearest", x, (high, wide), config.encode())
    np.testing.assert_array_equal(got, x[:, rows][:, :, columns])
    grad = image(high, wide)
    expected = np.zeros_like(x, dtype=np.float64)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            expected[:, row, column] += grad[:, i, j]
    got = resized("ResizeNearestGrad", grad, (height, width), config.encode())
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("target", ["ResizeNearest", "ResizeBilinear", "ResizeNearestGrad"])
def test_the_program_gives_what_the_reference_gives(target: str) -> None:
    small, large = image(4, 3), image(7, 6)
    x, result = (large, small) if target.endswith("Grad") else (small, large)
    types = [f"f32[{','.join(map(str, a.shape))}]" for a in (x, result)]
    imported = import_hlo(custom(target, types[:1], types[1], b"00"))
    (expected,) = evaluate(imported.graph, [x])
    np.testing.assert_allclose(natively(imported, [x])[0], expected, atol=1e-5)


def test_nearest_is_what_pytorch_calls_so() -> None:
    x = image(3, 4)
    expected = by_torch(x, (6, 12), "nearest", align=False)
    np.testing.assert_array_equal(resized("ResizeNearest", x, (6, 12), b'"00"'), expected)


@pytest.mark.parametrize(
    ("config", "result", "text"),
    [
        (b"2", "f32[1,4,4,1]", "two digits, not '2'"),
        (b"11", "f32[1,4,4,1]", "align_corners and half_pixel_centers"),
        (b"00", "f32[1,4,4,2]", "ResizeNearest of f32[1,2,2,1] to f32[1,4,4,2]"),
        (b"00", "f32[4,4]", "to f32[4,4]"),
        (b"00", "f32[1,1000000000,4,1]", "more than 65536 rows or columns"),
    ],
)
def test_what_is_no_resize(config: bytes, result: str, text: str) -> None:
    with pytest.raises(HloError, match="NCC_E") as caught:
        import_hlo(custom("ResizeNearest", ["f32[1,2,2,1]"], result, config))
    assert text in str(caught.value)
