"""Norms with weights in float32 of what is in 16 bits, as in mixed precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
CHANNELS = 4

NORMS: dict[str, Norm] = {
    "layer": lambda x, w, b: functional.layer_norm(x, [CHANNELS], w, b),
    "group": lambda x, w, b: functional.group_norm(x, 2, w, b),
    "batch": lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
    "instance": lambda x, w, b: functional.instance_norm(x, None, None, w, b),
    "rms": lambda x, w, b: functional.rms_norm(x, [CHANNELS], w) + b,
}


def trained(
    norm: Norm, device: str, dtypes: tuple[torch.dtype, torch.dtype], weighed: bool
) -> list[torch.Tensor]:
    """The result and the gradients, of numbers that 16 bits hold."""
    g = torch.Generator().manual_seed(0)
    numbers = [torch.randn(3, CHANNELS, 5 * CHANNELS, generator=g)[..., ::5] for _ in range(2)]
    numbers += [torch.randn(CHANNELS, generator=g) for _ in range(2)]
    numbers = [t.bfloat16().half().to(device) for t in numbers]
    x = numbers[0].to(dtypes[0]).requires_grad_()
    weight, bias = (t.to(dtypes[1]).requires_grad_(weighed) for t in numbers[2:])
    y = norm(x, weight, bias)
    y.backward(numbers[1].to(y.dtype))
    return [t.detach() for t in (y, x.grad, weight.grad, bias.grad) if t is not None]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # for rms_norm
@pytest.mark.parametrize("weighed", [True, False], ids=["weights trained", "weights fixed"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_weights_in_float32(name: str, dtype: torch.dtype, weighed: bool) -> None:
    torch.compiler.reset()
    exact = trained(NORMS[name], "cpu", (torch.float64, torch.float64), weighed)
    eager = trained(NORMS[name], "neuron", (dtype, torch.float32), weighed)
    compiled = torch.compile(NORMS[name], backend="neuron", fullgraph=True)
    got = trained(compiled, "neuron", (dtype, torch.float32), weighed)
    for value, mine, theirs in zip(exact, got, eager, strict=True):
        assert mine.dtype is theirs.dtype
        # The result is rounded once, and so are the gradient and what it is summed from.
        bound = 3 * torch.finfo(dtype).eps * float(value.abs().max())
        torch.testing.assert_close(mine.cpu().double(), value, rtol=0, atol=bound)
