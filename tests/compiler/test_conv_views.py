"""Networks with views across the channels after convolutions, in any layout, against the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import Space

from .conv_nets import net


def compare(model: nn.Module, x: torch.Tensor, *, training: bool) -> None:
    """Assert that results, and in training all gradients, are those of the CPU."""
    # In float64 on the CPU: convolutions by other methods differ in their rounding.
    exact = copy.deepcopy(model).double().train(training)
    mine = copy.deepcopy(model).to("neuron").train(training)
    torch.compiler.reset()
    inputs = [
        x.double().requires_grad_(training),
        x.detach().to("neuron").requires_grad_(training),
    ]
    expected, got = exact(inputs[0]), torch.compile(mine, backend="neuron")(inputs[1])
    bound = 2e-4 * float(expected.detach().abs().max() + 1)
    assert got.shape == expected.shape
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=0, atol=bound)
    if not training:
        return
    for result in (expected, got):
        (result.tanh().sum() / result.numel()).backward()
    pairs = [(inputs[1], inputs[0]), *zip(mine.parameters(), exact.parameters(), strict=True)]
    known = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    # Gradients that cancel (a bias before a batch normalisation) are as exact as their terms.
    scale = max(float(theirs.abs().max()) for _, theirs in known)
    for a, b in known:
        torch.testing.assert_close(a.cpu().double(), b, rtol=0, atol=2e-3 * scale + 1e-6)


@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=10)
def test_networks(seed: int, training: bool) -> None:
    torch.manual_seed(0)
    compare(*net(seed), training=training)


@pytest.mark.exhaustive
@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=200)
def test_more_networks(seed: int, training: bool) -> None:
    torch.manual_seed(0)
    compare(*net(seed), training=training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("channels", [8, 32])  # first, and last in memory
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_plainest_network(rank: int, channels: int, training: bool) -> None:
    torch.manual_seed(0)
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](3, channels, 3)
    model = nn.Sequential(convolution, nn.Flatten(), nn.ReLU())
    compare(model, torch.randn(2, 3, *(8, 7, 6)[:rank]), training=training)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
)
@example([2, 32, 6, 6], [2, 32 * 36], None)
@settings(max_examples=200)
def test_a_reshape_and_back_leads_to_the_same_place(
    old: list[int], new: list[int], data: st.DataObject | None
) -> None:
    # Axes of the space in any order over the dimensions, two dimensions on one axis at times.
    count = 1
    for extent in old:
        count *= extent
    if data is not None:
        new = [count] if data.draw(st.booleans()) else [*old[:1], count // old[0]]
    extents = {0: old[0], 1: count // (old[0] * (old[1] if len(old) > 1 else 1))}
    extents[2] = old[1] if len(old) > 1 else 1
    space = Space(extents, splittable=False)
    coords = [ix.of_axis(0)]
    if len(old) > 1:
        coords.append(ix.of_axis(2))
        coords.extend(ix.unflatten(ix.of_axis(1), old[2:], space))
    coords = [ix.ZERO if n == 1 else c for n, c in zip(old, coords, strict=True)]
    there = ix.reshape(coords, old, new, space)
    assert list(ix.reshape(there, new, old, space)) == coords
