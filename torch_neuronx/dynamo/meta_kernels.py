"""Shapes of random operators for which PyTorch has only kernels that compute.

A trace asks for shapes on fake tensors. Where an operator has no kernel for that, PyTorch runs the
real one on zeros, which draws from the device's generator: the first call of a compiled function
would then give other numbers than the eager one. Imported when Dynamo has been.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _binomial(count: Tensor, prob: Tensor, generator: torch.Generator | None = None) -> Tensor:
    del prob, generator
    return count.new_empty(count.shape)


def _sample_dirichlet(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    del generator
    return alpha.new_empty(alpha.shape)


SHAPES: dict[str, Callable[..., Tensor]] = {
    "aten::binomial": _binomial,
    "aten::_sample_dirichlet": _sample_dirichlet,
}
_library = torch.library.Library("aten", "IMPL", "Meta")


def register() -> None:
    """Register those that this version of PyTorch lacks."""
    for name, shape in SHAPES.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
            _library.impl(name, shape)
