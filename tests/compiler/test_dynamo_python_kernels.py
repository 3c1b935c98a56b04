"""What PyTorch traces by a kernel in Python that says something else than the operator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional


def _drawn(seed: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Rounded, so that margins are met exactly, and labels that end at any place or nowhere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).round(decimals=1)
    return x, torch.randint(-1, shape[-1], shape, generator=generator)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(3, 4), (4,), (1, 1), (5, 7)], ids=str)
def test_labels_end_at_the_first_minus_one(shape: tuple[int, ...], reduction: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(functional.multilabel_margin_loss, backend="neuron")
    for seed in range(4):
        x, target = _drawn(seed, shape)
        sides = []
        for loss, device in ((functional.multilabel_margin_loss, "cpu"), (compiled, "neuron")):
            there = x.detach().to(device).requires_grad_()
            result = loss(there, target.to(device), reduction=reduction)
            (grad,) = torch.autograd.grad(result.sum(), there)
            sides.append((result.detach().cpu(), grad.cpu()))
        torch.testing.assert_close(*sides)


@pytest.mark.parametrize(
    ("x", "target", "text"),
    [
        ((2, 0), (2, 0), "Expected non-empty vector or matrix"),
        ((2, 3, 4), (2, 3, 4), "Expected non-empty vector or matrix"),
        ((2, 3), (2, 4), "inconsistent target size"),
    ],
    ids=str,
)
def test_sizes_are_refused_as_in_eager_mode(
    x: tuple[int, ...], target: tuple[int, ...], text: str
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(functional.multilabel_margin_loss, backend="neuron")
    for loss in (functional.multilabel_margin_loss, compiled):
        labels = torch.zeros(target, dtype=torch.int64, device="neuron")
        with pytest.raises(RuntimeError, match=text):
            loss(torch.zeros(x, device="neuron"), labels)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")  # sides of one place
@settings(max_examples=15, deadline=None)
@given(sides=st.lists(st.integers(1, 4), min_size=2, max_size=3), align_corners=st.booleans())
@example(sides=[4, 1], align_corners=True)
@example(sides=[1, 3, 1], align_corners=False)
def test_grids_of_one_place(sides: list[int], align_corners: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(functional.affine_grid, backend="neuron", dynamic=False)
    size, dims = [2, 3, *sides], len(sides)
    theta = torch.randn(2, dims, dims + 1, generator=torch.Generator().manual_seed(0))
    found = []
    for make, device in ((functional.affine_grid, "cpu"), (compiled, "neuron")):
        there = theta.detach().to(device).requires_grad_()
        grid = make(there, size, align_corners=align_corners)
        (grad,) = torch.autograd.grad(grid.square().sum(), there)
        found.append((grid.detach().cpu(), grad.cpu()))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
def test_what_is_refused_for_one_size_is_asked_again_for_another() -> None:
    """ATen makes no grid of 16 bits where a side has one place."""
    torch.compiler.reset()
    compiled = torch.compile(functional.affine_grid, backend="neuron", dynamic=False)
    theta = torch.ones(2, 2, 3, dtype=torch.bfloat16, device="neuron")
    for make in (functional.affine_grid, compiled):
        with pytest.raises(Exception, match="not implemented for 'BFloat16'"):
            make(theta, [2, 3, 4, 1], align_corners=False)
        assert make(theta, [2, 3, 4, 2], align_corners=False).shape == (2, 4, 2, 2)
