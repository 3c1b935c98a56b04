"""The "memory efficient" attention operator by name: what DTensors use, compiled for any length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

OPERATOR = torch.ops.aten._scaled_dot_product_efficient_attention


@pytest.mark.every(2)
@pytest.mark.parametrize("queries", [1, 5, 31, 32, 40, 64])
@pytest.mark.parametrize("keep", [True, False], ids=["logsumexp", "no logsumexp"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_is_eager(queries: int, keep: bool, causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(queries)
    operands = [torch.randn(2, 3, queries, 16, device="neuron").to(dtype) for _ in range(3)]

    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, rows, _, _ = OPERATOR(q * 2, k, v, None, keep, is_causal=causal)
        return out, rows

    results: list[list[Any]] = []
    torch.compiler.reset()
    for function in (call, torch.compile(call, backend="neuron", fullgraph=True)):
        mine = [t.clone().requires_grad_() for t in operands]
        out, rows = function(*mine)
        (out * out).sum().backward()
        results.append([out.detach(), rows.detach(), *(t.grad for t in mine)])
    (out, rows, *grads), (compiled_out, compiled_rows, *compiled_grads) = results
    eps = 16 * torch.finfo(dtype).eps
    for got, expected in zip((compiled_out, *compiled_grads), (out, *grads), strict=True):
        assert expected is not None
        scale = float(expected.detach().abs().max())
        torch.testing.assert_close(got, expected, rtol=eps, atol=eps * scale)
    # Eager has a row for each query. PyTorch's fake tensors round their number up to a multiple of
    # 32 for CUDA's kernel, so graphs have zeros behind them, or nothing if nobody asked.
    assert rows.shape == (2, 3, queries)
    assert compiled_rows.shape == (2, 3, -(-queries // 32) * 32 if keep else 0)
    if keep:
        torch.testing.assert_close(compiled_rows[..., :queries], rows, rtol=1e-5, atol=1e-5)
        assert not compiled_rows[..., queries:].any()
