"""Kernels of the library against float64, with their gradients.

Tolerances: with u the unit roundoff of the type and v that of float32, results are rounded to the
type once or twice and computed in float32 by sums of at most n terms, so an error is at most
(2 u + (n + c) v) times the sum of the absolute terms; c counts the other operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_neuronx import kernels

OTHERS = 32  # operations besides the sums


def unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def compare(
    name: str, arguments: list[Any], *, differentiable: int, terms: int,
    magnitudes: Callable[..., list[torch.Tensor]], **options: Any,
) -> None:  # fmt: skip
    """Compare values and gradients with those of the reference in float64."""
    leaves = [a.detach().clone().requires_grad_() for a in arguments[:differentiable]]
    exact = [a.detach().double().requires_grad_() for a in arguments[:differentiable]]
    rest = arguments[differentiable:]
    out = getattr(kernels, name)(*leaves, *rest, **options)
    wide = [r.double() if r.is_floating_point() else r for r in rest]
    want = getattr(kernels, f"{name}_reference")(*exact, *wide, **options)
    grad = torch.randn(want.shape).to(out.dtype)
    found = (out, *torch.autograd.grad(out, leaves, grad))
    expected = (want, *torch.autograd.grad(want, exact, grad.double()))
    limits = magnitudes(*(a.detach() for a in exact), *wide, grad.double())
    relative = 2 * unit(leaves[0].dtype) + (terms + OTHERS) * unit(torch.float32)
    for have, correct, limit in zip(found, expected, limits, strict=True):
        error = (have.detach().double() - correct.detach()).abs()
        assert (error <= relative * limit.abs() + 1e-30).all(), error.max()
