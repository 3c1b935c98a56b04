"""Convolutions of the library against float64, with their gradients; see `kernel_tools`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import unet_kernels
from nki.errors import NkiError
from tests.nki.torch.kernel_tools import compare
from torch_neuronx import kernels

DTYPES = [torch.float32, torch.bfloat16]
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def magnitudes_of(name: str, options: dict[str, Any]) -> Callable[..., list[torch.Tensor]]:
    """The sums of absolute terms of a convolution and of its gradients."""

    def magnitudes(*tensors: torch.Tensor) -> list[torch.Tensor]:
        *given, grad = (t.abs() for t in tensors)
        leaves = [t.requires_grad_() for t in given]
        out = getattr(kernels, f"{name}_reference")(*leaves, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    return magnitudes


def check(name: str, tensors: list[torch.Tensor], **options: Any) -> None:
    x, weight = tensors[:2]
    # A sum goes over channels and places of the filters, or over images and their pixels.
    out = getattr(kernels, f"{name}_reference")(*tensors, **options)
    terms = max(weight[0].numel(), weight[:, 0].numel(), x[:, 0].numel(), out[:, 0].numel())
    compare(name, tensors, differentiable=len(tensors), terms=terms,
            magnitudes=magnitudes_of(name, options), **options)  # fmt: skip


def drawn(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


@settings(max_examples=8)
@given(st.data(), st.integers(1, 2), st.sampled_from([1, 3, 20]), st.sampled_from([1, 5, 18]),
       pairs, pairs, st.sampled_from(DTYPES), st.booleans())  # fmt: skip
def test_conv2d(
    data: st.DataObject, n: int, ins: int, outs: int, kernel: tuple[int, int],
    stride: tuple[int, int], dtype: torch.dtype, biased: bool,
) -> None:  # fmt: skip
    padding = [data.draw(st.integers(0, 3)) for _ in range(2)]
    size = [
        data.draw(st.integers(max(1, k - 2 * p), 14)) for k, p in zip(kernel, padding, strict=True)
    ]
    shapes = [(n, ins, *size), (outs, ins, *kernel), (outs,)]
    check("conv2d", drawn(dtype, *shapes[: 3 if biased else 2]), stride=stride, padding=padding)


@settings(max_examples=6)
@given(st.data(), st.integers(1, 2), st.sampled_from([1, 20]), st.sampled_from([1, 18]), pairs,
       pairs, st.sampled_from(DTYPES), st.booleans())  # fmt: skip
def test_conv_transpose2d(
    data: st.DataObject, n: int, ins: int, outs: int, kernel: tuple[int, int],
    stride: tuple[int, int], dtype: torch.dtype, biased: bool,
) -> None:  # fmt: skip
    more = [data.draw(st.integers(0, s - 1)) for s in stride]
    padding = [data.draw(st.integers(0, (k - 1) // 2)) for k in kernel]
    shapes = [(n, ins, data.draw(st.integers(1, 9)), 5), (ins, outs, *kernel), (outs,)]
    check("conv_transpose2d", drawn(dtype, *shapes[: 3 if biased else 2]), stride=stride,
          padding=padding, output_padding=more)  # fmt: skip


@pytest.mark.parametrize(
    ("x", "weight", "stride", "padding"),
    [
        ((1, 130, 9, 10), (140, 130, 3, 3), 1, 1),  # channels in two parts
        ((1, 3, 5, 600), (8, 3, 3, 3), 1, 1),  # lines of two products
        ((2, 3, 40, 48), (4, 3, 16, 16), 16, 0),  # patches
        ((1, 4, 8, 9), (6, 4, 3, 3), 2, 1),  # halves an image
        ((1, 8, 5, 5), (8, 8, 1, 1), 1, 2),  # results that see zeros alone
        ((1, 2, 3, 400), (2, 2, 130, 3), 3, 70),  # windows that are cut to fit SBUF
    ],
)
def test_sizes_that_are_taken_in_parts(
    x: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int
) -> None:
    check("conv2d", drawn(torch.float32, x, weight, weight[:1]), stride=stride, padding=padding)


def test_second_gradients() -> None:
    def second(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Any:
        x, weight = (t.clone().requires_grad_() for t in tensors)
        out = function(x, weight, None, 2, 1)
        first = torch.autograd.grad(out.square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (x, weight))

    tensors = [t / 4 for t in drawn(torch.float32, (1, 3, 6, 7), (4, 3, 3, 3))]
    found = second(kernels.conv2d, *tensors)
    exact = second(kernels.conv2d_reference, *(t.double() for t in tensors))
    # Four convolutions one after the other, each within 1e-5 of its largest values.
    for have, want in zip(found, exact, strict=True):
        torch.testing.assert_close(have.double(), want, rtol=1e-4, atol=1e-4)


def test_a_step_of_a_small_unet_compiled_on_the_device() -> None:
    """Down by a stride, up by a transposed convolution, and beside each other: as eager says."""
    tensors = drawn(
        torch.float32, (1, 3, 8, 8), (6, 3, 3, 3), (8, 6, 3, 3), (8, 6, 2, 2), (2, 12, 1, 1)
    )
    x, *weights = (t.to("neuron") for t in tensors)

    def loss(*weights: torch.Tensor) -> torch.Tensor:
        first, down, up, last = weights
        a = torch.relu(kernels.conv2d(x, first, padding=1))
        b = torch.relu(kernels.conv2d(a, down, stride=2, padding=1))
        c = kernels.conv_transpose2d(b, up, stride=2)
        return kernels.conv2d(torch.cat((a, c), 1), last).square().mean()

    def step(function: Callable[..., torch.Tensor]) -> Any:
        leaves = [w.clone().requires_grad_() for w in weights]
        value = function(*leaves)
        return value.detach(), *torch.autograd.grad(value, leaves)

    found = step(torch.compile(loss, backend="neuron", fullgraph=True))
    torch.testing.assert_close(found, step(loss))


def test_the_example_trains_a_unet() -> None:
    assert unet_kernels.run() == []


def test_refusals() -> None:
    x, weight = torch.ones(1, 3, 4, 4), torch.ones(2, 3, 5, 5)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: kernels.conv2d(x, weight),
        lambda: kernels.conv2d(x, weight[:, :2], padding=1),
        lambda: kernels.conv2d(x, weight, torch.ones(3), padding=1),
        lambda: kernels.conv2d(x, weight.bfloat16(), padding=1),
        lambda: kernels.conv2d(x[:0], weight, padding=1),
        lambda: kernels.conv2d(x, weight, stride=0, padding=1),
        lambda: kernels.conv2d(x[0], weight),
    )
    for call in calls:
        with pytest.raises(NkiError, match=r"conv2d of torch\.float32\[.*NKI274"):
            call()
    turned = weight.transpose(0, 1)
    with pytest.raises(NkiError, match=r"conv_transpose2d of .* with \[2, 2\].*NKI274"):
        kernels.conv_transpose2d(x, turned, stride=2, output_padding=2)
