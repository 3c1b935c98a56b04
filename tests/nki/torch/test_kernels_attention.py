"""Attention by kernels of NKI against float64, its gradients, and PyTorch's SDPA through it.

The tolerance follows from how the kernels round. With u the unit roundoff of the type and v that of
float32, weights, their gradients, `out` (of which the gradients are made) and the results are each
rounded once to the type; sums have at most n float32 terms; an error e of a score is a relative one
of its weight, and e is at most (width + 2) v sum(|q| |k|) scale. Each result is a sum of products,
so its error is at most the relative error of the factors times the sum of absolute products.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from neuronxcc.program.program import CallStep
from nki.errors import NkiError
from torch_neuronx.dynamo.backend import CompiledGraph
from torch_neuronx.kernels import attention, attention_reference, sdpa

Tensors = tuple[torch.Tensor, ...]


def operands(
    batch: int, heads: int, shared: int, queries: int, keys: int, width: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(queries + 7 * keys)
    shapes = [(batch, heads * shared, queries, width)] + [(batch, heads, keys, width)] * 2
    return [torch.randn(shape, generator=g).to(dtype) for shape in shapes]


def with_gradients(function: Any, tensors: list[torch.Tensor], grad: torch.Tensor) -> Tensors:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = function(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad.to(out)))


def bounds(tensors: list[torch.Tensor], grad: torch.Tensor, *, causal: bool) -> Tensors:
    """Largest errors of the result and the three gradients, elementwise."""
    q, k, v, g = (t.double().abs() for t in (*tensors, grad))
    repeats, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    signed = [t.double().repeat_interleave(n, 1) for t, n in zip(tensors, (1, repeats, repeats),
                                                               strict=True)]  # fmt: skip
    k, v = (t.repeat_interleave(repeats, 1) for t in (k, v))
    scores = signed[0] @ signed[1].transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)
    p = scores.softmax(-1)
    reach = (q @ k.transpose(-1, -2) * scale).max().item()
    out = p @ v
    dp = g @ v.transpose(-1, -2) + (g * out).sum(-1, keepdim=True)
    ds = p * dp
    sums = [out, ds @ k * scale, ds.transpose(-1, -2) @ q * scale, p.transpose(-1, -2) @ g]
    grouped = [t.unflatten(1, (-1, repeats)).sum(2) for t in sums[2:]]
    kind = torch.finfo(tensors[0].dtype)
    u = kind.eps / 2
    wide = torch.finfo(torch.float32).eps / 2
    terms = max(scores.shape[-2:]) * repeats
    relative = 4 * u + wide * (2 * (q.shape[-1] + 2) * reach + terms + 16)
    # Results, and weights that are rounded before a product, may be subnormal numbers.
    coarse = kind.smallest_normal * kind.eps
    factors = [t.sum(-2, keepdim=True) for t in (v, k * scale, q * scale, g)]
    factors[2:] = [t.unflatten(1, (-1, repeats)).sum(2) for t in factors[2:]]
    return tuple(
        relative * t + coarse * (1 + factor)
        for t, factor in zip((*sums[:2], *grouped), factors, strict=True)
    )


def check(found: Tensors, tensors: list[torch.Tensor], grad: torch.Tensor, causal: bool) -> None:
    exact = with_gradients(
        lambda *t: attention_reference(*t, causal=causal), [t.double() for t in tensors], grad
    )
    limits = bounds(tensors, grad, causal=causal)
    for have, want, limit in zip(found, exact, limits, strict=True):
        assert ((have.double().cpu() - want).abs() <= limit).all()


@settings(max_examples=6)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3)),
    st.integers(1, 300),
    st.integers(1, 600),
    st.sampled_from([1, 32, 128]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_values_and_gradients(
    heads: tuple[int, int, int], queries: int, keys: int, width: int, causal: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    tensors = operands(*heads, queries, keys, width, dtype)
    grad = torch.randn(tensors[0].shape, generator=torch.Generator().manual_seed(keys)).to(dtype)
    check(with_gradients(lambda *t: attention(*t, causal=causal), tensors, grad), tensors, grad,
          causal)  # fmt: skip


@pytest.fixture
def _switched(monkeypatch: pytest.MonkeyPatch) -> None:
    sdpa.install()
    monkeypatch.setenv("TORCH_NEURONX_ENABLE_NKI_SDPA", "1")
    torch._dynamo.reset()


@pytest.mark.usefixtures("_switched")
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_goes_through_the_kernels(causal: bool, graphs: list[CompiledGraph]) -> None:
    tensors = operands(1, 2, 2, 130, 130, 16, torch.float32)
    grad = torch.randn(tensors[0].shape)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    on_device = [t.to("neuron") for t in tensors]
    check(with_gradients(f, on_device, grad), tensors, grad, causal)
    found = with_gradients(torch.compile(f, backend="neuron", fullgraph=True), on_device, grad)
    check(found, tensors, grad, causal)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        assert sum(isinstance(s, CallStep) for s in graph.executable.program.steps) == 1


@pytest.mark.usefixtures("_switched")
def test_sdpa_says_once_what_the_kernels_do_not_take() -> None:
    q = torch.randn(1, 1, 8, 16, device="neuron")
    mask = torch.zeros(8, 8, device="neuron")
    sdpa._notice.cache_clear()
    with pytest.warns(UserWarning, match="ENABLE_NKI_SDPA=1: attention of a mask is not for NKI's"):
        found = scaled_dot_product_attention(q, q, q, attn_mask=mask)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, q, q))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled_dot_product_attention(q, q, q, attn_mask=mask)


@pytest.mark.slow
def test_the_environment_switches_it_on() -> None:
    """In a process of its own; the replacement of PyTorch's kernel gives no warning."""
    code = (
        "import torch; from torch.nn.functional import scaled_dot_product_attention as f\n"
        "q = torch.randn(1, 1, 4, 8, device='neuron')\n"
        "import torch_neuronx.kernels.flash_forward as m\n"
        "assert not m.flash_forward._launches; f(q, q, q); assert len(m.flash_forward._launches)\n"
    )
    environment = {**os.environ, "TORCH_NEURONX_ENABLE_NKI_SDPA": "1"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True)


def test_refusals() -> None:
    q = torch.randn(1, 2, 8, 16)
    for tensors, text in (
        ((q, q[0], q), "that do not have four dimensions"),
        ((q, q.half(), q), "of torch.float32, torch.float16 and"),
        ((q, q, q[:, :1]), "of shapes"),
        ((torch.randn(1, 1, 8, 200),) * 3, "of width 200, more than 128"),
        ((q[:, :, :0],) * 3, "of no elements"),
        ((torch.empty(1, 1, 1, 128, device="meta").expand(1, 1, 1 << 17, 128),) * 3, "than SBUF"),
    ):
        with pytest.raises(NkiError, match=f"{text}.*scaled_dot_product_attention for it.*NKI274"):
            attention(*tensors)
