"""Compiled functions under FakeTensorMode say what the results would be, without memory."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils import _pytree as pytree


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def _writes(x: Tensor) -> Tensor:
    x.add_(1)
    x.t()[0] = 3
    return x.sum(0, dtype=torch.float64)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: (x * 2).exp(),
    "product": lambda x: (x @ x.t()).to(torch.bfloat16),
    "views": lambda x: (x.t(), x[1:, ::2], x.expand(2, *x.shape)),
    "held": lambda x: x * torch.tensor([1.0, -2.0, 0.5, 3.0]).to(x.device),
    "created": lambda x: torch.arange(5, device=x.device) + torch.rand(5, device=x.device),
    "random": lambda x: functional.dropout(x, 0.5),
    "writes": _writes,
    "several": lambda x: (*x.sort(-1), x.argmax(), x.shape[0] * 2),
    "branch": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "host": torch.linalg.svdvals,
}


def _described(result: Any) -> list[Any]:
    return [
        (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x
        for x in pytree.tree_leaves(result)
    ]


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_described(name: str, dynamic: bool | None, inside: bool) -> None:
    if name == "created" and not inside:
        pytest.skip("it takes no tensor, so nothing in it is fake")
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    expected = _described(function(torch.ones(3, 4, device="neuron")))
    with FakeTensorMode() as mode:
        x = torch.ones(3, 4, device="neuron")
    with mode if inside else nullcontext():
        result = compiled(x)
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    assert all(type(tensor) is FakeTensor for tensor in tensors)
    assert _described(result) == expected


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_training_steps(dynamic: bool | None) -> None:
    with FakeTensorMode():
        with torch.device("neuron"):
            layer = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5))
        compiled: Any = torch.compile(layer, backend="neuron", dynamic=dynamic)
        optimizer = torch.optim.AdamW(layer.parameters())
        compiled(torch.ones(3, 4, device="neuron")).square().sum().backward()
        optimizer.step()
    for parameter in layer.parameters():
        assert type(parameter.grad) is FakeTensor
        assert parameter.grad.shape == parameter.shape
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape


def test_a_function_without_arguments() -> None:
    compiled = torch.compile(lambda: torch.ones(3, device="neuron") * 2, backend="neuron")
    with FakeTensorMode():
        assert type(compiled()) is FakeTensor
    assert compiled().tolist() == [2, 2, 2]


def test_numbers_are_computed_again_outside() -> None:
    compiled = torch.compile(FUNCTIONS["pointwise"], backend="neuron")
    x = torch.linspace(-1, 1, 12, device="neuron").view(3, 4)
    before = compiled(x)
    with FakeTensorMode() as mode:
        compiled(mode.from_tensor(x))
    assert torch.equal(compiled(x), before)
