"""Thread counts, many callers at once: the same bits whatever runs beside."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

core: Any = importlib.import_module(
    os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
)

pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] == "none", reason="this processor has no matrix micro-kernels"
)

CASES = [
    ("panel", 300, 200, 1100),
    ("panel", 60, 1000, 64),
    ("dot", 4, 3000, 700),
    ("dot", 3000, 4, 700),
    ("stream", 4, 3000, 700),
    ("stream", 3000, 4, 700),
]


@pytest.fixture(autouse=True)
def _thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def operands(case: tuple[str, int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    method, m, n, k = case
    a, b = torch.rand(m, k).to(dtype), torch.rand(k, n).to(dtype)
    # The large operand runs along K for dot and across it for stream.
    if method == "dot" and m < n:
        b = b.t().contiguous().t()
    if method == "stream" and m > n:
        a = a.t().contiguous().t()
    return a, b, torch.empty(m, n, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}x{case[2]}")
def test_thread_count_does_not_change_a_bit(
    case: tuple[str, int, int, int], dtype: torch.dtype
) -> None:
    if case[0] != "panel" and "avx512" not in core.gemm_kernels()["Float"]:
        pytest.skip("this processor has no kernels for thin operands")
    a, b, out = operands(case, dtype)
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        out.fill_(float("nan"))
        assert core.gemm_run_method(a, b, out, None, 1.0, 0.0, case[0])
        results.append(out.clone())
    assert all(torch.equal(results[0], result) for result in results)


def test_callers_at_once_do_not_mix() -> None:
    def work(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        a = torch.rand(70 + seed, 600, generator=generator)
        b = torch.rand(600, 90 + seed, generator=generator)
        out = torch.empty(70 + seed, 90 + seed)
        expected = a.double() @ b.double()
        for _ in range(20):
            out.fill_(float("nan"))
            core.gemm_run_method(a, b, out, None, 1.0, 0.0, "panel")
            # 600 products of numbers below one: an error below 602 x 2^-24 x 600.
            if (out.double() - expected).abs().max().item() > 602 * 2.0**-24 * 600:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_callers_at_once_agree_on_a_decision() -> None:
    core.gemm_clear()
    x, weight = torch.rand(40, 333), torch.rand(333, 222)

    def ask(_: int) -> str:
        method: str = core.gemm_method(x, weight, torch.empty(40, 222))
        return method

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(32)))) == 1
