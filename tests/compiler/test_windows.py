"""Compiled functions that return windows, whose elements share memory: results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

Step = Callable[[torch.Tensor], torch.Tensor]


@st.composite
def windows(draw: st.DrawFn) -> tuple[torch.Tensor, list[Step]]:
    """A tensor and views of what is computed from it, one of them of overlapping windows."""
    shape = draw(st.lists(st.integers(2, 9), min_size=1, max_size=3))
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    steps: list[Step] = []
    for kind in draw(st.permutations(["windows", *draw(st.sampled_from(OTHERS))])):
        now = x
        for step in steps:
            now = step(now)
        steps.append(_step(draw, now, kind))
    return x, steps


OTHERS: tuple[list[str], ...] = (
    [],
    ["transpose"],
    ["expand"],
    ["windows"],
    ["slice", "transpose"],
    ["select"],
)


def _step(draw: st.DrawFn, x: torch.Tensor, kind: str) -> Step:
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
    extent = x.shape[dim] if x.dim() else 1
    if kind == "windows" and extent > 1:
        size = draw(st.integers(2, extent))
        stride = draw(st.integers(1, size - 1))
        return lambda x: x.unfold(dim, size, stride)
    if kind == "select" and x.dim() > 1:
        return lambda x: x.select(dim, extent - 1)
    if kind == "slice" and x.dim():
        return lambda x: x.narrow(dim, extent // 2, extent - extent // 2)
    if kind == "expand":
        return lambda x: x.unsqueeze(0).expand(2, *x.shape)
    return lambda x: x.transpose(0, dim) if x.dim() else x


def _gradient(function: Step, x: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.to(device).requires_grad_()
    result = function(leaf)
    # Whole numbers: their sums are exact.
    grad = torch.arange(float(result.numel())).reshape(result.shape).remainder(7)
    result.backward(grad.to(device))
    assert leaf.grad is not None
    return result, leaf.grad.cpu()


def _strides(x: torch.Tensor) -> list[int]:
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("dynamic", [False, True])
@settings(max_examples=25, deadline=None)
@given(made=windows(), twice=st.booleans())
def test_gradients_of_windows(
    *, dynamic: bool, made: tuple[torch.Tensor, list[Step]], twice: bool
) -> None:
    x, steps = made

    def function(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if twice else x + 1
        for step in steps:
            x = step(x)
        return x

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    got, gradient = _gradient(compiled, x, "neuron")
    want, expected = _gradient(function, x, "cpu")
    assert torch.equal(got.cpu(), want)
    assert _strides(got) == _strides(want)
    assert torch.equal(gradient, expected)
