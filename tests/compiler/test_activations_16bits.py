"""Activations of every 16-bit number, compiled and eager: they do not share kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

# How many of the 65,536 results may differ (docs/operators.md).
DIFFERENT = {
    "exp": {torch.bfloat16: 100, torch.float16: 0},
    "tanh": {torch.bfloat16: 20, torch.float16: 20},
    "sigmoid": {torch.bfloat16: 20, torch.float16: 20},
    "silu": {torch.bfloat16: 20, torch.float16: 20},
    "gelu": {torch.bfloat16: 400, torch.float16: 400},
    "gelu_tanh": {torch.bfloat16: 250, torch.float16: 20},
}


def every(x: Tensor) -> dict[str, Tensor]:
    return {
        "exp": x.exp(),
        "tanh": x.tanh(),
        "sigmoid": x.sigmoid(),
        "silu": functional.silu(x),
        "gelu": functional.gelu(x),
        "gelu_tanh": functional.gelu(x, approximate="tanh"),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_compiled_and_eager_results_are_neighbours(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    eager = every(x.to("neuron"))
    compiled = torch.compile(every, backend="neuron", fullgraph=True)(x.to("neuron"))
    for name, result in eager.items():
        want, got = result.cpu(), compiled[name].cpu()
        assert torch.equal(got.isnan(), want.isnan()), name
        other = (got != want) & ~want.isnan()
        assert int(other.sum()) <= DIFFERENT[name][dtype], (name, int(other.sum()))
        steps = (got.view(torch.int16).int() - want.view(torch.int16).int())[other].abs()
        # Compiled gelu is x (1 + erf) / 2, where 1 and erf cancel.
        apart = (got.double() - want.double())[other].abs()
        cancelled = apart <= x.double().abs()[other] * 2.0**-22
        assert (cancelled | (steps <= 1)).all(), name
        if not name.startswith("gelu"):
            assert (steps <= 1).all(), name
