"""Look into a compiled model: what it became, and whether it computes what the CPU computes.

    python -m examples.inside

`NEURON_DUMP=folder` beside it writes every stage of the compilation as text.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import torch_neuronx


def feed_forward(device: torch.device) -> tuple[nn.Module, Tensor]:
    """A block of a transformer, width 64, and an input of 32 rows."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)
    return nn.Sequential(*layers).to(device).eval(), torch.randn(32, 64).to(device)


def look() -> list[str]:
    """Print the explanation and the comparison. Returns what went wrong, in words."""
    model, x = feed_forward(torch.device("neuron"))
    with torch.no_grad():
        print(torch_neuronx.explain(model, x))
        comparison = torch_neuronx.compare(model, x)
    print(comparison)
    return [] if comparison.equal else ["a compiled block differs from the CPU"]


if __name__ == "__main__":
    sys.exit(1 if look() else 0)
