"""Compiled programs and traced models are enqueued, with what they draw taken at the call."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import torch_neuronx
from tests.device.enqueued import everything_enqueued, held

N = torch_neuronx.neuron


@pytest.fixture(autouse=True)
def _everything_is_enqueued() -> Iterator[None]:
    with everything_enqueued("strict"):
        yield


@torch.compile(backend="neuron")
def _noisy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return nn.functional.dropout(x, 0.5) + torch.rand_like(x), torch.randn(7, device=x.device)


def test_programs_that_draw_are_enqueued_and_draw_what_they_drew() -> None:
    x = torch.ones(40, 50, device="neuron")

    def draw() -> list[torch.Tensor]:
        torch.manual_seed(3)
        made = []
        for _ in range(4):
            made += [*_noisy(x), torch.rand(5, device="neuron")]
        return [each.cpu() for each in made]

    draw()  # the first call shows how many numbers it takes
    torch.rand(5, device="neuron")
    N.synchronize()
    N.reset_eager_stats()
    with held():
        torch.manual_seed(3)
        first = [*_noisy(x), *_noisy(x)]
        assert N.eager_stats()["waits"] == 0
        assert not N.current_stream().query()
    queued = draw()
    assert torch.equal(first[0].cpu(), queued[0])
    assert torch.equal(first[1].cpu(), queued[1])
    N.set_eager_mode("debug")
    for one, other in zip(queued, draw(), strict=True):
        assert torch.equal(one, other)


class Traced(nn.Module):
    """A product and a state that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(30, 40)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x).relu()
        return y, y.sum(1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_traced_models_are_enqueued(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Traced().eval()
    traced = torch_neuronx.trace(model, torch.ones(5, 30))
    if dynamic:
        traced = torch_neuronx.dynamic_batch(traced)
    torch_neuronx.move_trace_to_device(traced, 0)
    x = torch.randn(5, 30, device="neuron")
    N.set_eager_mode("debug")
    expected = [each.cpu() for each in traced(x * 2)]
    N.set_eager_mode("strict")
    for _ in range(2):
        traced(x * 2)
        _ = torch.zeros(5, 30, device="neuron")
    N.synchronize()
    N.reset_eager_stats()
    with held():
        y = x * 2
        results = traced(y)
        assert N.eager_stats()["waits"] == 0
        assert not N.current_stream().query()
        del y
        _ = torch.zeros(5, 30, device="neuron")
    for one, other in zip(results, expected, strict=True):
        assert torch.equal(one.cpu(), other)


def test_a_traced_model_may_go_while_its_call_waits() -> None:
    torch.manual_seed(0)
    traced = torch_neuronx.trace(Traced().eval(), torch.ones(5, 30))
    torch_neuronx.move_trace_to_device(traced, 0)
    x = torch.randn(5, 30, device="neuron")
    expected = traced(x)[0].cpu()
    with held():
        result = traced(x)[0]
        del traced
    assert torch.equal(result.cpu(), expected)
    N.synchronize()


def test_a_model_on_several_cores_follows_the_callers_stream() -> None:
    torch.manual_seed(0)
    model = Traced().eval()
    traced = torch_neuronx.dynamic_batch(torch_neuronx.trace(model, torch.ones(5, 30)))
    replicas = torch_neuronx.DataParallel(traced, device_ids=[0, 1], dim=0)
    x = torch.randn(37, 30)
    for _ in range(3):
        side = N.Stream()
        with N.stream(side):
            found = replicas(x)[0]
        side.synchronize()
        torch.testing.assert_close(found.cpu(), model(x)[0])
