"""Auto-cast through `torch.compile`: compiled results are those of rounded operands."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "bf16": lambda x: x.to(torch.bfloat16).float(),
    "fp16": lambda x: x.to(torch.float16).float(),
    # Ten bits of mantissa: what the addend shifts out is rounded to nearest even.
    "tf32": lambda x: (x + x * 2.0**13) - x * 2.0**13,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def compiled(f: torch.nn.Module, mode: str, kind: str) -> torch.nn.Module:
    options: dict[str, Any] = {"auto_cast": mode, "auto_cast_type": kind}
    module = torch.compile(f, backend="neuron", fullgraph=True, options=options)
    assert isinstance(module, torch.nn.Module)
    return module


def inner(size: int) -> Tensor:
    """Values about one, whose products and sums are far from overflow."""
    return torch.randn(size, size, generator=torch.Generator().manual_seed(size))


def linear(size: int) -> torch.nn.Linear:
    layer = torch.nn.Linear(size, size, bias=False)
    with torch.no_grad():
        layer.weight.copy_(inner(size).T / 8)
    return layer.to("neuron")


@pytest.mark.parametrize("kind", list(ROUND))
def test_matmult_rounds_operands_and_sums_in_float32(kind: str) -> None:
    layer = linear(64)
    x = inner(64)
    with torch.no_grad():
        found = compiled(layer, "matmult", kind)(x.to("neuron")).cpu()
    weight = layer.weight.detach().cpu()
    rounded = ROUND[kind](x).double() @ ROUND[kind](weight).double().T
    exact = x.double() @ weight.double().T
    # Each of 64 additions rounds to float32; terms are bounded by the product of the magnitudes.
    bound = 64 * 2.0**-24 * float((x.abs() @ weight.abs().T).max())
    assert found.dtype is torch.float32
    assert float((found - rounded).abs().max()) <= bound
    assert float((exact - rounded).abs().max()) > bound  # the rounding can be seen


def test_gradients_are_rounded_too() -> None:
    layer = linear(32)
    x, gradient = inner(32), inner(33)[:32, :32].contiguous()
    torch.autograd.backward(
        compiled(layer, "matmult", "bf16")(x.to("neuron")), gradient.to("neuron")
    )
    assert layer.weight.grad is not None
    rounded = ROUND["bf16"](gradient).double().T @ ROUND["bf16"](x).double()
    bound = 32 * 2.0**-24 * float((gradient.abs().T @ x.abs()).max())
    assert float((layer.weight.grad.cpu() - rounded).abs().max()) <= bound


def test_fp8_has_a_maximum_of_240() -> None:
    class Product(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    a = torch.tensor([[1.0, 240.0, 17.0, 1000.0]]).T.to("neuron")
    one = torch.ones(1, 1, device="neuron")
    found = compiled(Product(), "matmult", "fp8_e4m3")(a, one).cpu().flatten().tolist()
    assert found == [1.0, 240.0, 16.0, math.inf]


def test_all_keeps_the_types_of_results() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to("neuron")
    x = inner(8).to("neuron")
    with torch.no_grad():
        found, eager = compiled(model, "all", "bf16")(x), model(x)
    assert found.dtype is torch.float32
    assert torch.equal(found, found.to(torch.bfloat16).float())  # rounded to bfloat16
    # tanh flattens errors: two roundings of the operands, one of the sum, one of the result.
    assert float((found - eager).abs().max()) <= 4 * 2.0**-8 * 8
