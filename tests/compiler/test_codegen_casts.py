"""Compiled casts to narrow types, bit for bit PyTorch's.

They are tried with all values of 16 bits, and with those of float32 around which rounding changes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

NARROW = [
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
]
BITS = {1: torch.uint8, 2: torch.int16}


def values_of(dtype: torch.dtype) -> torch.Tensor:
    """Every value of a type of 8 or 16 bits."""
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)


def around(dtype: torch.dtype) -> torch.Tensor:
    """The values in float32, what lies halfway between two of them, and their neighbours."""
    wide = values_of(dtype).double().numpy()
    finite = np.unique(wide[np.isfinite(wide)])
    halves = (finite[1:] + finite[:-1]) / 2
    beyond = finite[-1] * np.array([1 + 2.0**-k for k in range(1, 12)])
    with np.errstate(over="ignore"):  # beyond bfloat16 and halfway to it there is infinity
        found = np.concatenate([finite, halves, beyond, -beyond]).astype(np.float32)
        up = np.nextafter(found, np.float32(np.inf))
        down = np.nextafter(found, np.float32(-np.inf))
    exponents = (np.arange(1 << 13, dtype=np.uint32) << 19).view(np.float32)  # all sizes
    return torch.from_numpy(np.concatenate([found, up, down, exponents]))


def casts(*given: torch.Tensor) -> list[torch.Tensor]:
    # A product with 1 is computed first: nothing is cast by moving it.
    return [(x * 1).to(target) for x, target in zip(given, NARROW, strict=True)]


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_casts(source: torch.dtype) -> None:
    given = [around(t) if source == torch.float32 else values_of(source) for t in NARROW]
    compiled = torch.compile(casts, backend="neuron")(*(x.to("neuron") for x in given))
    for x, target, got, want in zip(given, NARROW, compiled, casts(*given), strict=True):
        result = got.cpu()
        # Which NaN PyTorch's CPU gives depends on its vectors.
        same = result.view(BITS[target.itemsize]) == want.view(BITS[target.itemsize])
        wrong = ~(same | result.isnan() & want.isnan())
        assert not wrong.any(), (target, x[wrong][:8], result[wrong][:8].float())
