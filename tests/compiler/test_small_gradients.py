"""Derivatives of what is right already, which are small: formulas that subtract lose them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

ROUNDINGS = 8.0


def _classes(x: Tensor) -> Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1)


def _first(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64, device=x.device)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "soft margin": lambda x: functional.soft_margin_loss(x, torch.ones_like(x), reduction="none"),
    "mean of soft margins": lambda x: functional.soft_margin_loss(x, torch.ones_like(x)),
    "soft margins": lambda x: functional.multilabel_soft_margin_loss(
        x[:, None], torch.ones_like(x)[:, None]
    ),
    "binary cross entropy": lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.ones_like(x)
    ),
    "cross entropy": lambda x: functional.cross_entropy(_classes(x), _first(x)),
    "softmax": lambda x: _classes(x).softmax(-1)[:, 0],
    "log softmax": lambda x: _classes(x).log_softmax(-1)[:, 0],
    "logsumexp": lambda x: _classes(x).logsumexp(-1),
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "logsigmoid": functional.logsigmoid,
    "softplus": functional.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "mish": functional.mish,
    "expm1": lambda x: torch.expm1(x * 0.25),
}


def of_all(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivatives in float64 on the CPU."""
    x = x.detach().requires_grad_()
    function(x).double().sum().backward()
    assert x.grad is not None
    return x.grad.cpu().double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_relative_errors(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x = torch.linspace(-60, 60, 241).to(dtype)
    truth = of_all(function, x.double())
    eager = of_all(function, x.to("neuron"))
    torch.compiler.reset()
    compiled = of_all(torch.compile(function, backend="neuron"), x.to("neuron"))
    shown = (truth.abs() > 1e-30).logical_and(eager.isfinite())
    one = truth[shown].abs() * torch.finfo(dtype).eps
    errors, theirs = (((g - truth)[shown] / one.double()).abs().max() for g in (compiled, eager))
    assert float(errors) <= max(ROUNDINGS, 2 * float(theirs))
