"""Fused attention: forward and gradients against float64 arithmetic on the host."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(width)) V by its definition; [batch, heads, length, width]."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    queries=st.integers(1, 40),
    width=st.sampled_from([1, 8, 17, 32]),
    causal=st.booleans(),
    strided=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_gradients(
    *,
    batch: int,
    heads: int,
    queries: int,
    width: int,
    causal: bool,
    strided: bool,
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(queries)
    shape = (batch, queries, heads, width) if strided else (batch, heads, queries, width)
    host = [torch.randn(shape, generator=generator).to(dtype) for _ in range(4)]
    if strided:
        host = [t.transpose(1, 2) for t in host]
    exact = [t.double().requires_grad_() for t in host[:3]]
    device = [t.to("neuron").requires_grad_() for t in host[:3]]
    expected = reference(exact[0], exact[1], exact[2], causal=causal)
    got = functional.scaled_dot_product_attention(device[0], device[1], device[2], is_causal=causal)
    wanted = torch.autograd.grad(expected, exact, host[3].double())
    grads = torch.autograd.grad(got, device, host[3].to("neuron"))
    # Each result is a sum over at most `queries` keys or `width` features of values of order one,
    # with intermediate results rounded to the dtype.
    eps = torch.finfo(dtype).eps
    bound = 16 * eps * math.sqrt(max(queries, width))
    torch.testing.assert_close(got.cpu().double(), expected.detach(), rtol=8 * eps, atol=bound)
    for mine, theirs in zip(grads, wanted, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=16 * eps, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_goes_through(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 16, generator=generator).to(dtype) for _ in range(3))
    mask = torch.rand(9, 9, generator=generator) < 0.7
    mask.fill_diagonal_(True)  # noqa: FBT003
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    got = functional.scaled_dot_product_attention(
        q.to("neuron"), k.to("neuron"), v.to("neuron"), attn_mask=mask.to("neuron")
    )
    torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_of_another_width_and_shared_keys(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 33, 16), (2, 2, 40, 16), (2, 2, 40, 24))
    host = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    device = [t.to("neuron").requires_grad_() for t in host]
    got = functional.scaled_dot_product_attention(device[0], device[1], device[2], enable_gqa=True)
    assert "FusedAttention" in type(got.grad_fn).__name__  # PyTorch's CPU kernel refuses the widths
    exact = [t.double().requires_grad_() for t in host]
    q, k, v = exact[0], *(t.repeat_interleave(3, 1) for t in exact[1:])
    expected = reference(q, k, v, causal=False)
    bound = 32 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().double(), expected.detach(), rtol=bound, atol=bound)
    gradient = torch.randn(expected.shape, generator=generator).to(dtype)
    wanted = torch.autograd.grad(expected, exact, gradient.double())
    grads = torch.autograd.grad(got, device, gradient.to("neuron"))
    for mine, theirs in zip(grads, wanted, strict=True):
        # Sums over up to three heads of 33 queries, or 40 keys, of values of order one.
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=bound, atol=4 * bound)


def test_results_are_laid_out_as_the_query() -> None:
    q = torch.randn(2, 9, 3, 16, device="neuron").transpose(1, 2).requires_grad_()
    k, v = torch.randn(2, 3, 9, 16, device="neuron"), torch.randn(2, 3, 9, 8, device="neuron")
    assert functional.scaled_dot_product_attention(q, k, k).stride() == q.stride()
    assert functional.scaled_dot_product_attention(q, k, v).stride() == (216, 8, 24, 1)
    got = functional.scaled_dot_product_attention(q, k, k)
    (grad,) = torch.autograd.grad(got.sum(), q)
    assert grad.stride() == q.stride()


def test_a_handful_of_keys() -> None:
    """The one case that PyTorch's kernel keeps because it is faster there."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 64, generator=generator) for n in (30, 3, 3))
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    device = [t.to("neuron").requires_grad_() for t in (q, k, v)]
    expected = reference(exact[0], exact[1], exact[2], causal=False)
    got = functional.scaled_dot_product_attention(device[0], device[1], device[2])
    torch.testing.assert_close(got.cpu(), expected.detach().float())
    wanted = torch.autograd.grad(expected.sum(), exact)
    for mine, theirs in zip(torch.autograd.grad(got.sum(), device), wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_that_are_not_contiguous(dtype: torch.dtype) -> None:
    """The compiler hands chunks of a channels-first projection to the operator itself."""
    generator = torch.Generator().manual_seed(1)
    host = [torch.randn(2, 3, 8, 6, generator=generator).to(dtype) for _ in range(4)]
    q, k, v, grad = (t.to("neuron").transpose(2, 3) for t in host)
    exact = [t.transpose(2, 3).double().requires_grad_() for t in host[:3]]
    expected = reference(*exact, causal=False)
    wanted = torch.autograd.grad(expected, exact, host[3].transpose(2, 3).double())
    operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    results = operator(q, k, v)
    backward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward
    none = torch.empty(0, device="neuron")
    grads = backward(
        grad, q, k, v, none, [True, True, True, False], *results[:2], none, none, 6, 6, 0.0,
        is_causal=False, philox_seed=none, philox_offset=none,
    )  # fmt: skip
    eps = torch.finfo(dtype).eps
    for mine, theirs in zip((results[0], *grads[:3]), (expected, *wanted), strict=True):
        bound = 16 * eps * math.sqrt(8)
        torch.testing.assert_close(mine.cpu().double(), theirs, rtol=16 * eps, atol=bound)


# Sizes that fit together: batch, heads, heads of keys, queries, keys, width.
_SIZES = (2, 4, 2, 5, 7, 16)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_operands_that_do_not_fit_together_are_refused(
    data: st.DataObject, dtype: torch.dtype
) -> None:
    """One size of one operand is changed; each way to PyTorch's kernel, or to ours, compares it."""
    batch, heads, kv_heads, queries, keys, width = _SIZES
    shapes = {
        "query": [batch, heads, queries, width],
        "key": [batch, kv_heads, keys, width],
        "value": [batch, kv_heads, keys, width],
        "out": [batch, heads, queries, width],
        "grad_out": [batch, heads, queries, width],
        "logsumexp": [batch, heads, queries],
    }
    name = data.draw(st.sampled_from(list(shapes)))
    place = data.draw(st.integers(0, len(shapes[name]) - 1))
    # 3 heads don't divide into 2 groups, and neither fits a size of another operand.
    size = data.draw(st.sampled_from([0, 3, 9]))
    shapes[name][place] = size
    t = {
        key: torch.ones(shape, dtype=dtype, device="neuron").contiguous()
        for key, shape in shapes.items()
    }
    aten = torch.ops.aten
    host = aten._scaled_dot_product_flash_attention_for_cpu
    host_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    # Attention over nothing is defined by its formula, on the math path; so are a query of another
    # length and values of another width.
    forward = name in {"query", "key", "value"} and size > 0 and (name, place) != ("query", 2)
    if forward:
        with pytest.raises(RuntimeError):
            host(t["query"], t["key"], t["value"])
    if forward and (name, place) != ("value", 3):
        with pytest.raises((RuntimeError, ValueError)):
            functional.scaled_dot_product_attention(
                t["query"], t["key"], t["value"], enable_gqa=True
            )
    lse = t["logsumexp"].float() if dtype != torch.float64 else t["logsumexp"]
    operands = (t["grad_out"], t["query"], t["key"], t["value"], t["out"], lse)
    with pytest.raises(RuntimeError):
        host_backward(*operands, 0.0, False)  # noqa: FBT003 - PyTorch's signature


@pytest.mark.parametrize(
    "shape", [(5, 6), (4, 7), (2, 3, 5, 7), (3, 4, 5, 7), (1, 1, 1, 5, 7), (7,)]
)
def test_a_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    q, k = torch.ones(2, 4, 5, 320, device="neuron"), torch.ones(2, 4, 7, 320, device="neuron")
    with pytest.raises(RuntimeError):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, k, attn_mask=torch.zeros(shape, device="neuron")
        )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_float64(compiled: bool, masked: bool) -> None:
    """It takes PyTorch's math path, as on CUDA: fused operators keep a float32 log-sum-exp."""
    torch.manual_seed(0)
    host = [torch.randn(2, 3, 7, 8, dtype=torch.float64) for _ in range(3)]
    mask = torch.randn(7, 7, dtype=torch.float64) if masked else None
    call = functional.scaled_dot_product_attention
    found = []
    for device in ("cpu", "neuron"):
        operands = [t.detach().to(device).requires_grad_() for t in host]
        bias = None if mask is None else mask.to(device)
        there = device == "neuron" and compiled
        function = torch.compile(call, backend="neuron") if there else call
        query, key, value = operands
        out = function(query, key, value, attn_mask=bias)
        found.append([out, *torch.autograd.grad(out.square().sum(), operands)])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-13, atol=1e-13)
