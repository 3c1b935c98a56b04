"""Products that hand their sums to an epilogue: every place once, in the caller's coordinates."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

core: Any = importlib.import_module(
    os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
METHODS = ["panel", "dot", "stream"]
UNIT = 2.0**-24

pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] == "none", reason="this processor has no matrix micro-kernels"
)

SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p, ctypes.c_int64
)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def collect(
    a: torch.Tensor,
    b: torch.Tensor,
    c0: torch.Tensor | None,
    scale: tuple[float, float],
    method: str,
    *,
    packed: bool,
) -> np.ndarray | None:
    """The sums that the epilogue got; fails if it got one twice or not at all."""
    batched = a.dim() == 3
    batch, m, n = a.shape[0] if batched else 1, a.shape[-2], b.shape[-1]
    sums, visits = np.zeros((batch, m, n), np.float32), np.zeros((batch, m, n), np.int64)
    lock = threading.Lock()
    errors: list[str] = []

    def epilogue(_: int, which: int, *place: int) -> None:
        row0, rows, col0, cols, address, stride = place
        if min(row0, col0) < 0 or row0 + rows > m or col0 + cols > n:
            errors.append(f"{place} is outside {m} x {n}")
            return
        kind = ctypes.c_float * ((rows - 1) * stride + cols)
        flat = np.ctypeslib.as_array(kind.from_address(address))
        tile = np.lib.stride_tricks.as_strided(flat, (rows, cols), (4 * stride, 4))
        with lock:
            sums[which, row0 : row0 + rows, col0 : col0 + cols] = tile
            visits[which, row0 : row0 + rows, col0 : col0 + cols] += 1

    function = SIGNATURE(epilogue)
    address = ctypes.cast(function, ctypes.c_void_p).value
    out = torch.empty((*a.shape[:-1], n), dtype=a.dtype)
    untouched = out.clone()
    if not core.gemm_run_method(a, b, out, c0, *scale, method, packed, address):
        return None
    assert not errors
    assert (visits == 1).all()
    assert torch.equal(out.view(torch.int8), untouched.view(torch.int8))
    return sums


def operand(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    *batch, rows, cols = shape
    if layout == "columns":
        return (torch.rand(*batch, cols, rows) * 2 - 1).to(dtype).mT
    if layout == "shared":
        return (torch.rand(rows, cols) * 2 - 1).to(dtype).expand(*batch, rows, cols)
    return (torch.rand(*batch, rows, cols) * 2 - 1).to(dtype)


SIZES = st.one_of(st.integers(1, 8), st.integers(1, 140))


@given(
    data=st.data(),
    batch=st.sampled_from([None, 1, 2, 3]),
    m=SIZES,
    n=SIZES,
    k=st.one_of(st.integers(1, 40), st.sampled_from([511, 700, 1100])),
    dtype=st.sampled_from(DTYPES),
    method=st.sampled_from(METHODS),
)
def test_every_place_once_with_its_sum(
    *,
    data: st.DataObject,
    batch: int | None,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    method: str,
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 9)))
    lead = () if batch is None else (batch,)
    a = operand((*lead, m, k), data.draw(st.sampled_from(["rows", "columns"])), dtype)
    layouts = ["rows", "columns"] if batch is None else ["rows", "columns", "shared"]
    b = operand((*lead, k, n), data.draw(st.sampled_from(layouts)), dtype)
    c0 = operand((*lead, m, n), "rows", dtype) if data.draw(st.booleans()) else None
    alpha = data.draw(st.sampled_from([1.0, 0.5]))
    with threads(data.draw(st.sampled_from([1, 2]))):
        got = collect(
            a, b, c0, (alpha, 1.0 if c0 is not None else 0.0), method,
            packed=data.draw(st.booleans()),
        )  # fmt: skip
    if got is None:
        return
    exact = alpha * (a.double() @ b.double())
    bound = (k + 2) * UNIT * abs(alpha) * (a.double().abs() @ b.double().abs())
    if c0 is not None:
        exact += c0.double()
        bound += (k + 2) * UNIT * c0.double().abs()
    error = (torch.from_numpy(got).double() - exact.view(got.shape)).abs()
    assert (error <= bound.view(got.shape) + 2.0**-149).all()


@pytest.mark.parametrize("with_c0", [False, True])
def test_an_empty_sum_is_zero(*, with_c0: bool) -> None:
    a, b = torch.empty(70, 0), torch.empty(0, 300)
    c0 = torch.rand(70, 300) if with_c0 else None
    got = collect(a, b, c0, (1.0, 1.0 if with_c0 else 0.0), "panel", packed=False)
    assert got is not None
    assert (got[0] == (c0.numpy() if c0 is not None else 0)).all()


def test_the_sums_are_those_of_the_plain_product() -> None:
    a, b = torch.rand(200, 900), torch.rand(900, 150)
    plain = torch.empty(200, 150)
    assert core.gemm_run_method(a, b, plain, None, 1.0, 0.0, "panel")
    got = collect(a, b, None, (1.0, 0.0), "panel", packed=True)
    assert got is not None
    assert torch.equal(torch.from_numpy(got[0]), plain)
