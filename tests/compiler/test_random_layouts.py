"""Random numbers for tensors in any order of memory: a program draws what eager mode draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from neuronxcc.lowering.geometry.layout import span

from .test_lowering_random import strides_of

DRAWS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "dropout": lambda x: functional.dropout(x, 0.4),
    "dropout twice": lambda x: functional.dropout(functional.dropout(x, 0.4).relu(), 0.2),
    "dropout of a sum": lambda x: functional.dropout(x + x.mT.mT, 0.5),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.3),
    "feature dropout": lambda x: functional.feature_alpha_dropout(x, 0.3),
    "rand_like": lambda x: x + torch.rand_like(x * 2),
    "randn_like": lambda x: x * torch.randn_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()),
    "normal": lambda x: x + torch.normal(x.detach() * 2),
    "uniform_": lambda x: x * (x.detach() * 1).uniform_(),
    "rrelu": lambda x: functional.rrelu(-x, training=True),
}


@st.composite
def layouts(draw: Callable[..., Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes of 2 to 4 dimensions, and strides: in any order, some with gaps between elements."""
    shape = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(2, 4))))
    order = list(draw(st.permutations(range(len(shape)))))
    return shape, strides_of(shape, order, draw(st.sampled_from((1, 1, 2))))


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(DRAWS)), layout=layouts(), gradients=st.booleans())
@example(name="dropout twice", layout=((2, 3, 8), (24, 1, 3)), gradients=True)
@example(name="dropout of a sum", layout=((8, 3, 4), (1, 32, 8)), gradients=False)
def test_like_eager_mode(
    name: str, layout: tuple[tuple[int, ...], tuple[int, ...]], *, gradients: bool
) -> None:
    torch.compiler.reset()
    function = DRAWS[name]
    memory = torch.linspace(0.5, 2, span(*layout), device="neuron")
    results = []
    for run in (function, torch.compile(function, backend="neuron")):
        x = memory.as_strided(*layout).requires_grad_(gradients)
        torch.manual_seed(5)
        result = run(x)
        given = torch.autograd.grad(result.square().sum(), x) if gradients else ()
        results.append([result.detach().cpu(), *(g.cpu() for g in given), torch.rand(3)])
    for mine, other in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("chance", [0.1, 0.3, 0.9])
def test_gradients_of_dropout_are_not_scaled_by_a_rounded_number(
    chance: float, dtype: torch.dtype
) -> None:
    torch.compiler.reset()
    x = torch.randn(512, device="neuron").to(dtype).requires_grad_()
    weights = torch.randn(512, device="neuron").to(dtype)
    given: list[Tensor] = []
    for run in (functional.dropout, torch.compile(functional.dropout, backend="neuron")):
        torch.manual_seed(5)
        given += torch.autograd.grad(run(x, chance), x, weights)
    assert torch.equal(*given)


def test_gradients_of_integers_that_were_dropped_are_zeros_without_a_sign() -> None:
    grad = torch.tensor([-5, 5, -3], device="neuron")
    kept = torch.tensor([False, True, True], device="neuron")
    backward = torch.ops.aten.native_dropout_backward
    found = torch.compile(lambda g, m: backward(g, m, 2.0), backend="neuron")(grad, kept)
    assert torch.equal(found.signbit(), backward(grad, kept, 2.0).signbit())
    assert found.tolist() == [0.0, 10.0, -6.0]


@pytest.mark.parametrize("mask", [torch.bool, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32, torch.complex64],
    ids=str,
)
def test_gradients_of_every_type_are_dropped(dtype: torch.dtype, mask: torch.dtype) -> None:
    torch.compiler.reset()
    grad = torch.tensor([1, 0, 1, 3, 2], device="neuron").to(dtype)
    kept = torch.tensor([1, 0, 0, 1, 1], device="neuron").to(mask)
    backward = torch.ops.aten.native_dropout_backward
    found = torch.compile(lambda g, m: backward(g, m, 2.5), backend="neuron")(grad, kept)
    torch.testing.assert_close(found, backward(grad, kept, 2.5), rtol=0, atol=0)
