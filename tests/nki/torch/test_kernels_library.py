"""The library's other kernels against float64, with their gradients; see `kernel_tools`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.errors import NkiError
from tests.nki.torch.kernel_tools import OTHERS, compare, unit
from torch_neuronx import kernels
from torch_neuronx.kernels.mx import rounded

DTYPES = [torch.float32, torch.bfloat16]


sizes = st.integers(1, 200)


@settings(max_examples=4)
@given(sizes, sizes, st.sampled_from(DTYPES))
def test_rms_norm(rows: int, width: int, dtype: torch.dtype) -> None:
    def magnitudes(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
        normed, scaled = (x * root).abs(), (g * w).abs()
        mean = (scaled * normed).mean(-1, keepdim=True)
        return [normed * w.abs(), root * (scaled + normed * mean), (g.abs() * normed).sum(0)]

    x, w = torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)
    compare("rms_norm", [x, w], differentiable=2, terms=width + rows, magnitudes=magnitudes,
            eps=1e-3)  # fmt: skip


@settings(max_examples=4)
@given(st.integers(1, 3), sizes, st.integers(1, 64), st.sampled_from(DTYPES))
def test_rotary(heads: int, positions: int, half: int, dtype: torch.dtype) -> None:
    def magnitudes(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor, g: torch.Tensor) -> Any:
        def absolute(t: torch.Tensor) -> torch.Tensor:
            a, b = t.abs().chunk(2, -1)
            c_, s_ = c.abs(), s.abs()
            return torch.cat([a * c_ + b * s_, b * c_ + a * s_], -1)

        return [absolute(x), absolute(g)]

    angle = torch.randn(positions, half)
    x = torch.randn(2, heads, positions, 2 * half).to(dtype)
    compare("rotary", [x, angle.cos(), angle.sin()], differentiable=1, terms=2,
            magnitudes=magnitudes)  # fmt: skip


@settings(max_examples=4)
@given(sizes, st.integers(1, 5000), st.sampled_from(DTYPES), st.sampled_from(["mean", "none"]))
def test_cross_entropy(rows: int, classes: int, dtype: torch.dtype, reduction: str) -> None:
    targets = torch.randint(0, classes, (rows,))
    targets[1:2] = -100
    counted = int((targets != -100).sum())

    def magnitudes(x: torch.Tensor, _: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        # The errors of the largest logit and of the logarithm are absolute.
        loss = x.abs().amax(-1) + x.logsumexp(-1).abs() + 1
        share = g if reduction == "none" else (g / counted).expand(rows)
        # A probability is an exponential of a difference of numbers up to twice the largest logit.
        gradient = (x.softmax(-1) * (2 * x.abs().amax(-1, keepdim=True) + 2) + 1) * share[:, None]
        return [loss if reduction == "none" else loss.max(), gradient]

    x = torch.randn(rows, classes).mul(4).to(dtype)
    compare("cross_entropy", [x, targets], differentiable=1, terms=classes, magnitudes=magnitudes,
            reduction=reduction)  # fmt: skip


@settings(max_examples=3)
@given(sizes, st.integers(1, 2300), st.integers(1, 700), st.sampled_from(DTYPES))
def test_matmul(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    def magnitudes(a: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        a, b, g = a.abs(), b.abs(), g.abs()
        return [a @ b, g @ b.t(), a.t() @ g]

    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    compare("matmul", [a, b], differentiable=2, terms=max(m, k, n), magnitudes=magnitudes)


@settings(max_examples=4)
@given(sizes, sizes, sizes, st.sampled_from([torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]))
def test_quantized_matmul(m: int, k: int, n: int, kind: torch.dtype) -> None:
    def magnitudes(
        x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, g: torch.Tensor
    ) -> list[torch.Tensor]:
        weight = w.double().abs() * s
        return [x.abs() @ weight, g.abs() @ weight.t()]

    weight = (torch.randn(k, n) * 20).to(kind)
    compare("quantized_matmul", [torch.randn(m, k), weight, torch.rand(n)], differentiable=1,
            terms=max(k, n), magnitudes=magnitudes)  # fmt: skip


@settings(max_examples=2)
@given(st.integers(1, 70), st.integers(1, 300), st.sampled_from([128, 640]))
def test_mx_matmul(half: int, n: int, k: int) -> None:
    x, w = torch.randn(2 * half, k).bfloat16(), torch.randn(n, k).bfloat16()
    found = kernels.mx_matmul(x, w)
    exact = rounded(x).double() @ rounded(w).double().t()
    limit = rounded(x).double().abs() @ rounded(w).double().abs().t()
    relative = 2 * unit(torch.bfloat16) + (max(k, n) + OTHERS) * unit(torch.float32)
    assert ((found.double() - exact).abs() <= relative * limit).all()
    x.requires_grad_()
    grad = torch.randn(exact.shape).bfloat16()
    (dx,) = torch.autograd.grad(kernels.mx_matmul(x, w), x, grad)
    exact, limit = grad.double() @ w.double(), grad.double().abs() @ w.double().abs()
    assert ((dx.double() - exact).abs() <= relative * limit).all()


def test_compiled_on_the_device() -> None:
    x, w = torch.randn(20, 64, device="neuron"), torch.randn(64, device="neuron")
    function = functools.partial(kernels.rms_norm, eps=1e-5)
    compiled = torch.compile(lambda x, w: function(x * 2, w) + 1, backend="neuron", fullgraph=True)
    torch.testing.assert_close(compiled(x, w), function(x * 2, w) + 1)


def test_refusals() -> None:
    a = torch.ones(4, 6)
    calls: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: kernels.matmul(a, a), r"matmul of torch.float32\[4, 6\]"),
        (lambda: kernels.quantized_matmul(a, a.t(), a[0]), "quantized_matmul of"),
        (lambda: kernels.mx_matmul(a, a), "mx_matmul of"),
    )
    for call, text in calls:
        with pytest.raises(NkiError, match=f"{text}.*NKI274"):
            call()
    with pytest.raises(ValueError, match="reduction='max': use mean, sum or none"):
        kernels.cross_entropy(a, torch.zeros(4), reduction="max")
    x = torch.ones(2, 128, dtype=torch.bfloat16, device="neuron")
    with pytest.raises(NkiError, match="NKI112"):
        kernels.mx_matmul(x, x)
