"""Small models by TORCH_NEURONX_EXECUTOR=device: what a NeuronCore's instructions compute."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from neuronxcc.options import Options
from nki.device import lower

from .dynamo_tools import watched
from .zoo import ZOO, Entry, build, first_output, inputs

# Sums of some hundred products in other orders, of values about 1.
LARGEST = 1e-4
CNN = (
    nn.Conv2d(3, 8, 3, padding=1, stride=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1, groups=8),
    nn.Conv2d(8, 16, 1),
    nn.SiLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 16, 3, dilation=2, padding=2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 10),
)


@pytest.fixture(autouse=True)
def by_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "device")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def on_device(model: nn.Module, function: Callable[[Any], Any]) -> tuple[Any, float]:
    """What a function of the compiled model returns, and the share of its operators with code."""
    with watched() as graphs:
        result = function(torch.compile(model.to("neuron"), backend="neuron"))
    programs = [lower(graph.imported.graph, options=Options(lnc=2)) for graph in graphs]
    return result, min(program.coverage for program in programs)


#: A decoder with shared keys, an encoder, a decoder of older style, and one of convolutions.
CHOSEN = ("GPT2", "Bert", "Llama", "ResNet")
# Every model of the zoo is an exhaustive sample of what the chosen ones show.
EVERY = [
    pytest.param(entry, id=entry.name)
    if entry.name in CHOSEN
    else pytest.param(entry, id=entry.name, marks=pytest.mark.exhaustive)
    for entry in ZOO
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers warn about kernels that are not installed
@pytest.mark.parametrize("entry", EVERY)
def test_a_model_of_the_zoo(entry: Entry) -> None:
    model, given = build(entry).eval(), inputs(entry)
    with torch.no_grad():
        expected = first_output(model(**given))
        there = {key: value.to("neuron") for key, value in given.items()}
        got, coverage = on_device(model, lambda m: first_output(m(**there)))
    torch.testing.assert_close(got.cpu(), expected, rtol=LARGEST, atol=LARGEST)
    assert coverage == 1.0 or entry.name not in CHOSEN


def test_a_convolutional_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*copy.deepcopy(CNN)).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(x)
        got, coverage = on_device(model, lambda m: m(x.to("neuron")))
    torch.testing.assert_close(got.cpu(), expected, rtol=LARGEST, atol=LARGEST)
    assert coverage == 1.0


def test_a_training_step() -> None:
    """Forward, loss, backward: gradients of embeddings, attention, norms and layers."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 32)
            self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.head = nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = self.head(self.block(self.embed(ids)))
            return y

    torch.manual_seed(0)
    model = Small()
    other = copy.deepcopy(model)
    ids = torch.randint(0, 50, (2, 12))
    labels = torch.randint(0, 50, (24,))

    def step(m: Any, device: str) -> Tensor:
        loss = functional.cross_entropy(m(ids.to(device)).reshape(24, 50), labels.to(device))
        loss.backward()
        return loss

    expected = step(other, "cpu")
    got, coverage = on_device(model, lambda m: step(m, "neuron"))
    torch.testing.assert_close(got.cpu(), expected, rtol=LARGEST, atol=LARGEST)
    for mine, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), wanted.grad, rtol=LARGEST, atol=LARGEST)
    assert coverage >= 0.9
