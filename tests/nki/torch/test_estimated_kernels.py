"""NKI kernels in `torch_neuronx.estimate`: their instructions are timed, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nki.first_generation.language as first
import nki.isa as nisa
import nki.language as nl
import torch_neuronx
from nki.first_generation.launch import jit as first_jit
from nki.perf import predict_recording
from tests.nki.torch.kernels_for_tests import combine, increment_into, sine
from torch_neuronx import nki, nki_op
from torch_neuronx.estimation.result import Estimate
from torch_neuronx.kernels.norm import rms_norm

ROWS, COLUMNS = 128, 2048


@nki_op("nki_estimate_tests::sine", mutates_args={})
def sine_op(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    sine(x, out)
    return out


@first_jit
def doubled(x: Any) -> Any:
    """A kernel of the first generation, whose engines a compiler chooses."""
    out = first.ndarray(x.shape, dtype=x.dtype, buffer=first.shared_hbm)
    first.store(out, first.multiply(first.load(x), 2.0))
    return out


@nki.jit
def repeated(x: Any, times: Any) -> Any:
    """Adds 1 as often as a value of the run says."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    count = nl.ndarray((1, 1), dtype=nl.int32)
    nisa.dma_copy(dst=count, src=times)
    upper = nisa.register_alloc(None)
    nisa.register_load(upper, count)
    for _ in nl.dynamic_range(0, upper):
        nisa.tensor_scalar(dst=tile, data=tile, op0="add", operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def x() -> Tensor:
    return torch.empty(ROWS, COLUMNS, device="meta")


def by_an_operator(a: Tensor) -> Tensor:
    result: Tensor = sine_op(a * 0.5 + 1.0).sum(1)
    return result


def called(a: Tensor) -> Tensor:
    result: Tensor = combine(a, a * 2.0).sum(1)
    return result


def written(a: Tensor) -> Tensor:
    out = torch.zeros_like(a)
    increment_into(a * 2.0, out)
    return out + a


def of_the_first_generation(a: Tensor) -> Tensor:
    result: Tensor = doubled(a + 1.0) + 1.0
    return result


CALLS: dict[Callable[[Tensor], Tensor], tuple[str, Any]] = {
    by_an_operator: ("nki.sine", sine),
    called: ("nki.combine", combine),
    written: ("nki.increment_into", increment_into),
    of_the_first_generation: ("nki.doubled", doubled),
}


def check(found: Estimate) -> None:
    assert sum(row.us for row in found.rows) == pytest.approx(found.step_us)
    assert "operators of the host" not in str(found)
    assert found.notes == ()


@pytest.mark.parametrize("programs", [False, True])
@pytest.mark.parametrize("function", CALLS)
def test_a_kernel_takes_what_its_instructions_take(
    function: Callable[[Tensor], Tensor], programs: bool
) -> None:
    found = torch_neuronx.estimate(function, x(), target="trn1", programs=programs)
    check(found)
    name, kernel = CALLS[function]
    (row,) = (row for row in found.rows if row.operator == name)
    made = getattr(kernel, "today", lambda: kernel)()
    recordings = [launch.recording for launch in made.launches()]
    (recording,) = (one for one in recordings if one.target.name == "trn1" and shaped(one))
    expected = predict_recording(recording)
    assert row.how == "simulated"
    assert row.us == pytest.approx(expected.device_us)
    assert row.bytes == expected.hbm_bytes
    assert "test_estimated_kernels.py:" in row.line
    assert found.simulated >= row.us / found.step_us
    assert "of instructions" in str(found)


def shaped(recording: Any) -> bool:
    return any(storage.nbytes == ROWS * COLUMNS * 4 for storage in recording.storages)


def test_the_first_generation_is_timed_as_compiled() -> None:
    torch_neuronx.estimate(of_the_first_generation, x(), target="trn1")
    assert all(launch.recording.compiled for launch in doubled.today().launches())
    assert not any(launch.recording.compiled for launch in sine.launches())


def test_what_a_kernel_takes_and_gives_goes_through_memory() -> None:
    """What is small enough to stay on the chip does so between operators of PyTorch."""
    small = torch.empty(128, 64, device="meta")
    nbytes = 128 * 64 * 4
    found = torch_neuronx.estimate(lambda a: sine_op(a * 0.5) * 2.0, small)
    moved = {share.name: share.bytes for share in found.by("operator")}
    assert moved["nki.sine"] == 2 * nbytes
    # One is read and written for the first product, and likewise for the second one.
    assert moved["aten.mul.Tensor"] == 4 * nbytes


def test_eager_calls_are_programs_of_their_own() -> None:
    found = torch_neuronx.estimate(by_an_operator, x(), mode="eager")
    check(found)
    assert found.programs == 4  # of a product, a sum, the kernel, another sum


def test_a_layer_of_kernels_is_trained() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(512))
            self.linear = nn.Linear(512, 512)

        def forward(self, a: Tensor) -> Tensor:
            return rms_norm(self.linear(a), self.weight)

    found = torch_neuronx.estimate(Normed(), torch.zeros(256, 512), training=True)
    check(found)
    sections = {row.operator: row.section for row in found.rows if row.operator.startswith("nki.")}
    assert sections == {"nki.forward_kernel": "forward", "nki.backward_kernel": "backward"}


def test_loops_that_values_end_are_counted_by_bytes_and_said() -> None:
    def function(a: Tensor) -> Tensor:
        times = torch.ones(1, 1, dtype=torch.int32, device="neuron")
        result: Tensor = repeated(a, times) + 1.0
        return result

    found = torch_neuronx.estimate(function, x())
    (note,) = found.notes
    assert note.startswith("kernel repeated by its bytes alone: ")
    (row,) = (row for row in found.rows if row.operator == "nki.repeated")
    assert row.how == "bytes and flops"
    assert row.us > 0
