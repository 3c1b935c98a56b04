"""Losses that PyTorch traces by a kernel in Python, which says something else than the operator."""

from __future__ import annotations

import pytest
import torch
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
