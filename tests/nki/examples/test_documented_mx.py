"""The guide of microscaling formats: packed scales, strided layouts, products of MX tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from tests.nki.examples.tools import Array, bf16, output, tile

K, M, N = 128, 128, 512

FORMATS = {
    "e5m2": (ml_dtypes.float8_e5m2, nl.float8_e5m2_x4),
    "e4m3": (ml_dtypes.float8_e4m3fn, nl.float8_e4m3fn_x4),
    "e2m1": (ml_dtypes.float4_e2m1fn, nl.float4_e2m1fn_x4),
}


def quantized(kind: str, columns: int, seed: int) -> tuple[Array, Array, Array]:
    """Return packed items, their scales [K / 8, columns], and the values [K, columns, 4]."""
    rng = np.random.default_rng(seed)
    items = rng.standard_normal((K, columns, 4)).astype(np.float32).astype(FORMATS[kind][0])
    scales = rng.integers(120, 130, (K // 8, columns)).astype(np.uint8)
    values = items.astype(np.float64) * 2.0 ** (np.repeat(scales, 8, 0)[..., None] - 127.0)
    if kind != "e2m1":
        return items.view(np.uint32)[..., 0], scales, values
    nibbles = items.view(np.uint8) & 15
    return nibbles[..., ::2].astype(np.uint8) | nibbles[..., 1::2] << 4, scales, values


def loaded(data: Any, scales: Any, dtype: Any, columns: int) -> tuple[Any, Any]:
    """Load packed items, and scales to the first four partitions of each quadrant."""
    held = nl.ndarray((K, columns), dtype=dtype, buffer=nl.sbuf)
    source = data.reshape((K, data.shape[1] * data.shape[2])) if len(data.shape) == 3 else data
    nisa.dma_copy(dst=held, src=source.view(dtype))
    spread = nl.ndarray((K, columns), dtype=nl.uint8, buffer=nl.sbuf)
    for quadrant in nl.affine_range(K // 32):
        nisa.dma_copy(
            dst=spread[quadrant * 32 : quadrant * 32 + 4, :],
            src=scales[quadrant * 4 : quadrant * 4 + 4, :],
        )
    return held, spread


@nki.jit
def product(a: Any, a_scales: Any, a_type: Any, b: Any, b_scales: Any, b_type: Any) -> Any:
    left, left_scales = loaded(a, a_scales, a_type, M)
    right, right_scales = loaded(b, b_scales, b_type, N)
    total = nl.ndarray((M, N), dtype=nl.bfloat16, buffer=nl.psum)
    nisa.nc_matmul_mx(
        dst=total,
        stationary=left,
        moving=right,
        stationary_scale=left_scales,
        moving_scale=right_scales,
    )
    held = nl.ndarray((M, N), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    return output(held)


@pytest.mark.parametrize(("left", "right"), [("e5m2", "e5m2"), ("e4m3", "e2m1"), ("e2m1", "e2m1")])
def test_products_of_quantized_tensors(left: str, right: str) -> None:
    a, a_scales, a_values = quantized(left, M, 0)
    b, b_scales, b_values = quantized(right, N, 1)
    got = product(a, a_scales, FORMATS[left][1], b, b_scales, FORMATS[right][1])
    exact = np.einsum("kiq,kjq->ij", a_values, b_values)
    size = np.einsum("kiq,kjq->ij", np.abs(a_values), np.abs(b_values))
    bound = 2.0**-8 * np.abs(exact) + 4 * K * 2.0**-23 * size  # the result, and float32 sums
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def interleaved(source: Any, by_copies: bool) -> Any:
    """Return [K, columns * 4]: four rows of the contraction beside each other."""
    rows, columns = source.shape
    quarter = rows // 4
    held = nl.ndarray((quarter, columns, 4), dtype=source.dtype, buffer=nl.sbuf)
    for i in range(4):
        part = source[i * quarter : (i + 1) * quarter, :]
        if by_copies:
            nisa.tensor_copy(dst=held[:, :, i], src=tile(part))
        else:
            nisa.dma_copy(dst=held[:, :, i], src=part)
    return held.reshape((quarter, columns * 4))


@nki.jit
def quantized_product(a: Any, b: Any, dtype: Any, by_copies: bool, shared_scales: bool) -> Any:
    assert a.buffer == b.buffer == nl.hbm
    parts = []
    shared = nl.ndarray((K, N), dtype=nl.uint8, buffer=nl.sbuf) if shared_scales else None
    for i, source in enumerate((a, b)):
        columns = source.shape[1]
        data = nl.ndarray((K, columns), dtype=dtype, buffer=nl.sbuf)
        if shared is None:
            scale = nl.ndarray((K, columns), dtype=nl.uint8, buffer=nl.sbuf)
        else:
            scale = shared[4 * i :, :columns]
        nisa.quantize_mx(dst=data, src=interleaved(source, by_copies), dst_scale=scale)
        parts.append((data, scale))
    (left, left_scale), (right, right_scale) = parts
    total = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(total, left, right, left_scale, right_scale)
    held = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    return output(held)


@pytest.mark.parametrize("by_copies", [True, False])
@pytest.mark.parametrize("shared_scales", [True, False])
def test_tensors_quantized_on_the_device(by_copies: bool, shared_scales: bool) -> None:
    rng = np.random.default_rng(0)
    # Few bits, and the same exponent everywhere: the quantized tensors hold them exactly.
    a, b = (bf16(rng.choice([-1.75, -1.0, 1.25, 1.5], (4 * K, n))) for n in (M, N))
    got = quantized_product(a, b, nl.float8_e4m3fn_x4, by_copies, shared_scales)
    np.testing.assert_array_equal(got, a.astype(np.float32).T @ b.astype(np.float32))
