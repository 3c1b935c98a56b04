"""NKI kernels in compiled graphs, run and timed by their instructions as the rest of the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from neuronxcc.options import Options
from neuronxcc.perf import predict
from nki.device import lower
from nki.perf.streams import stream_of
from tests.compiler.dynamo_tools import watched
from tests.nki.torch.kernels_for_tests import increment_into, sine
from torch_neuronx import nki_op
from torch_neuronx.nki.launches import recording_of


@nki_op("nki_device_tests::sine", mutates_args={})
def sine_op(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    sine(x, out)
    return out


@pytest.fixture(autouse=True)
def by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "device")
    torch.compiler.reset()


def between(x: Tensor) -> Tensor:
    """A kernel whose operand is computed, and whose result is used."""
    result: Tensor = sine_op(x * 0.5 + 1.0).sum(1)
    return result


def turned(x: Tensor) -> Tensor:
    """A kernel whose operand is a view, which it needs as a copy."""
    result: Tensor = sine_op(x.T.contiguous()) * 2.0
    return result


def twice(x: Tensor) -> Tensor:
    result: Tensor = sine_op(sine_op(x))
    return result


def alone(x: Tensor) -> Tensor:
    result: Tensor = sine_op(x)
    return result


@pytest.mark.parametrize("function", [between, turned, twice, alone])
def test_a_kernel_is_a_part_of_the_device_program(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-2, 2, 128 * 64).reshape(128, 64)
    expected: dict[Callable[[Tensor], Tensor], Tensor] = {
        between: torch.sin(x * 0.5 + 1.0).sum(1),
        turned: torch.sin(x.T) * 2.0,
        twice: torch.sin(torch.sin(x)),
        alone: torch.sin(x),
    }
    with watched() as graphs:
        got = torch.compile(function, backend="neuron", fullgraph=True)(x.to("neuron"))
    # Sums of 64 sines, in float32.
    torch.testing.assert_close(got.cpu(), expected[function], rtol=1e-5, atol=1e-5)
    (graph,) = graphs
    program = lower(graph.imported.graph, options=Options(lnc=2), kernels=recording_of)
    assert not program.missing
    assert program.coverage == 1.0
    kernels = [section for section in program.sections if section.kind == "kernel"]
    assert len(kernels) == (2 if function is twice else 1)
    made = program.predict()
    for time in made.sections:
        if time.section.kind == "kernel":
            assert time.section.recording is not None
            alone_us = predict(stream_of(time.section.recording), program.target).device_us
            assert time.device_us == pytest.approx(alone_us)
    assert made.device_us >= sum(t.device_us for t in made.sections if t.section in kernels)
    # Nobody gave the recordings: the same call is one by its bytes.
    without = lower(graph.imported.graph, options=Options(lnc=2))
    assert [section.kind for section in without.missing] == ["custom_call"] * len(kernels)


def test_a_kernel_writes_its_arguments() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        increment_into(x * 2.0, y)
        return y + x

    x = torch.linspace(-2, 2, 128 * 64).reshape(128, 64)
    got = torch.compile(function, backend="neuron", fullgraph=True)(x.to("neuron"))
    torch.testing.assert_close(got.cpu(), x * 2.0 + 1.0 + x, rtol=1e-6, atol=1e-6)
