# ruff: noqa: S311 - nothing here is a secret
"""Random numbers that Python draws in compiled functions, and numbers as arguments."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_neuronx.compat.release import minor

CASES: dict[str, Callable[[Tensor], Any]] = {
    "random": lambda x: x + random.random(),
    "uniform": lambda x: x * random.uniform(2, 5),
    "two of them": lambda x: x * random.uniform(2, 5) + random.uniform(0, 1) * 2.0,
    "one of its own": lambda x: x + random.Random(3).random(),
    "randint": lambda x: x + random.randint(1, 9),
    "randrange": lambda x: x + random.randrange(1, 9),
    "choice": lambda x: x * random.choice([1.0, 2.0, 3.0]),
    "gauss": lambda x: x * random.gauss(0, 1),
    "branch": lambda x: x * 2 if random.random() < 0.5 else x * 3,
    "size": lambda x: x.new_zeros(random.randint(2, 4)) + x.sum(),
    "tensor": lambda x: torch.tensor(random.uniform(1, 2)) + x.cpu(),
    "tensor alone": lambda x: (x * 2, torch.tensor(random.uniform(1, 2))),
    "tensor on the device": lambda x: x + torch.tensor(random.uniform(1, 2), device=x.device),
    "full": lambda x: x + torch.full((3,), random.random(), device=x.device),
    "integers": lambda x: x.long() * random.uniform(0, 9),
}
#: Results are float64 where Dynamo 2.15 traces the number as a tensor, for every backend.
DOUBLE = {"tensor alone", "integers"}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # it breaks the graph
@pytest.mark.parametrize(
    ("dtype", "dynamic"), [(torch.float32, None), (torch.float64, None), (torch.bfloat16, True)]
)
@pytest.mark.parametrize("name", CASES)
def test_numbers_of_random_are_those_of_eager_mode(
    name: str, dtype: torch.dtype, dynamic: bool | None
) -> None:
    function = CASES[name]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    if name in DOUBLE and minor(torch.__version__) == "2.15":
        function = torch.compile(function, backend="aot_eager", dynamic=dynamic)
    x = torch.tensor([1.0, 2.0, 3.0], dtype=dtype, device="neuron")
    for seed in (1, 2, 3):
        random.seed(seed)
        expected = [function(x) for _ in range(2)]
        random.seed(seed)
        got = [compiled(x) for _ in range(2)]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("draw", [np.random.rand, np.random.random, np.random.randn])
def test_numbers_of_numpy_are_drawn_anew(draw: Callable[[], float]) -> None:
    """Dynamo traces NumPy as PyTorch, so these are other numbers than NumPy's."""
    compiled = torch.compile(lambda x: x * draw(), backend="neuron")
    x = torch.ones(3, device="neuron")
    torch.manual_seed(0)
    first, second = compiled(x).tolist(), compiled(x).tolist()
    assert first != second
    assert len(set(first)) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_floats_and_integers_as_arguments(dynamic: bool | None) -> None:
    def function(x: Tensor, scale: float, count: int) -> Tensor:
        return x * scale + torch.tensor(scale, device=x.device) + count

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    x = torch.ones(3, device="neuron")
    for scale, count in ((1.5, 2), (2.5, 3), (-0.25, 0), (1e-30, 7)):
        torch.testing.assert_close(compiled(x, scale, count), function(x, scale, count))


# Where the two numbers of an `autograd.Function` are used: forward, backward, both.
USES = list(itertools.product(("f", "b", "fb"), repeat=2))
NUMBERS = (1.0, 1.0)


def _function(uses: tuple[str, ...], results: int) -> Any:
    """Forward and backward multiply by the numbers that they use, each to another power."""

    def product(where: str, x: Tensor) -> Tensor:
        for i, use in enumerate(uses):
            if where in use:
                for _ in range(i + 1):
                    x = x * NUMBERS[i]
        return x

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
            kept = y.exp()
            ctx.save_for_backward(x, kept)
            found = tuple(product("f", x * y + k) for k in range(results))
            return found[0] if results == 1 else found

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            x, kept = ctx.saved_tensors
            grad = product("b", sum(grads[1:], grads[0]) * (x + kept))
            return grad, grad * 2

    return Function.apply


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("uses", USES, ids="-".join)
def test_numbers_of_an_autograd_function(
    uses: tuple[str, ...], results: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reaches the graph, forward or backward, that reads it, whatever stands between them."""
    apply = _function(uses, results)

    def function(x: Tensor, y: Tensor) -> Tensor:
        found = apply(x, y * 2)
        total: Tensor = found if results == 1 else found[0] + found[1]
        return total

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=True)
    for numbers in ((1.5, 2.5), (0.25, -4.0)):
        monkeypatch.setattr(sys.modules[__name__], "NUMBERS", numbers)
        sides = []
        for called in (function, compiled):
            x = torch.linspace(0.5, 1.0, 4, device="neuron", requires_grad=True)
            y = torch.linspace(-1.0, 0.5, 4, device="neuron", requires_grad=True)
            result = called(x, y)
            sides.append((result, *torch.autograd.grad(result.sum(), (x, y))))
        torch.testing.assert_close(*sides)
