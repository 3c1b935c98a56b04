"""A function of a number does not depend on where the number lies, nor on where its result goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "silu": lambda x: functional.silu(x, inplace=True),
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
}
OUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "exp": lambda x, out: torch.exp(x, out=out),
    "tanh": lambda x, out: torch.tanh(x, out=out),
    "sigmoid": lambda x, out: torch.sigmoid(x, out=out),
    "silu": lambda x, out: torch.ops.aten.silu.out(x, out=out),
    "gelu": lambda x, out: torch.ops.aten.gelu.out(x, out=out),
    "gelu_tanh": lambda x, out: torch.ops.aten.gelu.out(x, approximate="tanh", out=out),
}


def views(x: Tensor) -> dict[str, Tensor]:
    """Tensors of the shape and values of `x` [4, 6, 35] in other places."""
    gaps = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
    gaps[..., ::2] = x
    return {
        "in order": x,
        "transposed": x.transpose(0, 2).contiguous().transpose(0, 2),
        "rotated": x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "gaps": gaps[..., ::2],
        "an odd place": torch.cat((x.new_zeros(3), x.flatten()))[3:].view(x.shape),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_layout_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    host = torch.randn(4, 6, 35, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    x, f = host.to("neuron"), FUNCTIONS[name]
    expected = f(x).cpu()
    for where, view in views(x).items():
        got = f(view)
        assert torch.equal(got.cpu(), expected), where
        # The strides are those of PyTorch's own iterator.
        assert got.stride() == f(views(host)[where]).stride(), where
        for place, out in views(torch.zeros_like(x)).items():
            assert OUT[name](view, out) is out
            assert torch.equal(out.cpu(), expected), (where, place)
        assert torch.equal(IN_PLACE[name](view.clone()).cpu(), expected), where
    for where, view in views(x.clone()).items():
        IN_PLACE[name](view)
        assert torch.equal(view.cpu(), expected), where
    for n in (1, 7, 16, 33):  # the ends of vectors
        assert torch.equal(f(x.flatten()[:n]).cpu(), expected.flatten()[:n])
    wide = x[:, :1].expand(4, 6, 35)
    assert torch.equal(f(wide).cpu(), expected[:, :1].expand(4, 6, 35))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_layout_has_the_same_gradient(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 6, 35, generator=generator).mul(3).to(dtype).to("neuron")
    seed = torch.randn(4, 6, 35, generator=generator).to(dtype).to("neuron")
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(FUNCTIONS[name](leaf), leaf, seed)[0].cpu()
    for where, view in views(x).items():
        for place, grad in views(seed).items():
            leaf = view.detach().requires_grad_()
            got = torch.autograd.grad(FUNCTIONS[name](leaf), leaf, grad)[0]
            assert torch.equal(got.cpu(), expected), (where, place)


GRADIENTS: dict[str, Any] = {
    "gelu": torch.ops.aten.gelu_backward,
    "silu": torch.ops.aten.silu_backward,
    "tanh": torch.ops.aten.tanh_backward,
    "sigmoid": torch.ops.aten.sigmoid_backward,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_in_a_given_tensor_is_the_same(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    grad, saved = (
        torch.randn(4, 6, 35, generator=generator).to(dtype).to("neuron") for _ in range(2)
    )
    backward = GRADIENTS[name]
    more: list[dict[str, str]] = [{}]
    if name == "gelu":
        more.append({"approximate": "tanh"})
    for options in more:
        expected = backward(grad, saved, **options)
        for place, out in views(torch.zeros_like(saved)).items():
            strides = out.stride()
            assert backward.grad_input(grad, saved, **options, grad_input=out) is out
            assert torch.equal(out, expected), place
            assert out.stride() == strides
        wide = torch.empty(0, dtype=torch.float64, device="neuron")
        assert torch.equal(
            backward.grad_input(grad, saved, **options, grad_input=wide), expected.double()
        )
        same = grad.clone()
        assert torch.equal(backward.grad_input(same, saved, **options, grad_input=same), expected)
    with pytest.raises(RuntimeError, match="can't be cast"):
        backward.grad_input(grad, saved, grad_input=saved.long())
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        backward.grad_input(grad.flatten()[1:], saved.flatten()[1:], grad_input=grad.flatten()[:-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_does_not_depend_on_the_layout(log: bool, dtype: torch.dtype) -> None:
    f = torch.log_softmax if log else torch.softmax
    generator = torch.Generator().manual_seed(4)
    x, seed = (
        torch.randn(4, 6, 35, generator=generator).mul(4).to(dtype).to("neuron") for _ in range(2)
    )
    leaf = x.clone().requires_grad_()
    expected = f(leaf, -1)
    (gradient,) = torch.autograd.grad(expected, leaf, seed)
    for where, view in views(x).items():
        for place, grad in views(seed).items():
            leaf = view.detach().requires_grad_()
            got = f(leaf, -1)
            assert torch.equal(got, expected), where
            assert torch.equal(torch.autograd.grad(got, leaf, grad)[0], gradient), (where, place)


def test_lists_and_other_dtypes_of_results() -> None:
    x = torch.randn(33, generator=torch.Generator().manual_seed(2)).to("neuron")
    for name in ("exp", "tanh", "sigmoid"):
        expected = FUNCTIONS[name](x)
        assert torch.equal(getattr(torch, f"_foreach_{name}")([x])[0], expected)
        wide = torch.empty(33, dtype=torch.float64, device="neuron")
        assert torch.equal(OUT[name](x, wide), expected.double())
        with pytest.raises(RuntimeError, match="can't be cast"):
            OUT[name](x, torch.empty(33, dtype=torch.int64, device="neuron"))
