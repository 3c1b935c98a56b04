"""TORCH_NEURONX_EXECUTOR=program and device: compiled functions run by their steps in NumPy, and
by the instructions of a NeuronCore.

The tests of compiled functions compare the native executor with the reference of the IR.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR

from .dynamo_tools import watched


def pointwise(x: Tensor) -> Any:
    return (x * 2).relu().sum(1), x.exp().mean(), x.argmax(0)


def products(x: Tensor) -> Any:
    return functional.gelu(x @ x.T), torch.einsum("ij,kj->ik", x, x + 1)


def images(x: Tensor) -> Any:
    picture = x.reshape(1, 1, 6, 4)
    return functional.conv2d(picture, torch.ones(2, 1, 3, 3, device=x.device)).flatten(1) + 1


def operators(x: Tensor) -> Any:
    return x.sort(dim=1)[0], x.topk(2)[1], torch.linalg.svdvals(x)


def updates(x: Tensor) -> Any:
    y = x.clone()
    y[1:].mul_(2)
    x.add_(1)
    return y, x


def branches(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda v: (v.sin(),), lambda v: (v.cos(),), (x,))


@pytest.mark.parametrize(
    "function",
    [pointwise, products, images, operators, updates, branches],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("executor", ["program", "device"])
def test_steps_in_numpy(
    function: Callable[[Tensor], Any], executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator).to("neuron")
    mine = x.clone()
    expected = tree_leaves(function(mine))
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, executor)
    torch.compiler.reset()
    with watched() as graphs:
        got = tree_leaves(torch.compile(function, backend="neuron", fullgraph=True)(x))
    assert len(graphs) == 1
    for result, wanted in zip((x, *got), (mine, *expected), strict=True):
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride()


def test_an_unknown_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "program")
    torch.compiler.reset()
    x = torch.ones(3, device="neuron")
    with pytest.raises(Exception, match="optlevl"):
        torch.compile(lambda v: v + 1, backend="neuron", options={"optlevl": 2})(x)
