"""What a library's tests of the device look like; run by the workflow beside this file."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


def model() -> nn.Module:
    """Stand in for the library's own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))


@pytest.mark.neuron
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward(neuron: torch.device, dtype: torch.dtype) -> None:
    ours, x = model().to(dtype), torch.randn(16, 32, dtype=dtype)
    expected = ours(x)
    actual = copy.deepcopy(ours).to(neuron)(x.to(neuron))
    assert actual.device.type == "neuron"
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.neuron
def test_training_step(neuron: torch.device) -> None:
    weights = []
    for device in (torch.device("cpu"), neuron):
        trained = model().to(device)
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
        torch.manual_seed(1)
        x = torch.randn(16, 32).to(device)
        trained(x).square().mean().backward()
        optimizer.step()
        weights.append([p.detach().cpu() for p in trained.parameters()])
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)


@pytest.mark.neuron
def test_compiled(neuron: torch.device) -> None:
    ours, x = model().to(neuron), torch.randn(16, 32, device=neuron)
    with torch.no_grad():
        compiled = torch.compile(ours, backend="neuron")
        torch.testing.assert_close(compiled(x), ours(x))
