"""What diffusers asks of a device by tables and helpers, in strict portability mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from diffusers.utils import import_utils, torch_utils

from torch_neuronx import ops


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with ops.portability("strict"):
        yield


NEURON = torch.device("neuron")


def test_the_device_is_found() -> None:
    assert import_utils.is_torch_neuronx_available()
    assert torch_utils.get_device() == "neuron"
    assert torch_utils.torch_device == "neuron"
    assert torch_utils.backend_supports_training("neuron") is False  # diffusers says so


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, torch.float32),
        (torch.int64, torch.int32),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.int32, torch.int32),
    ],
)
def test_dtypes(given: torch.dtype, expected: torch.dtype) -> None:
    adjusted = torch_utils.maybe_adjust_dtype_for_device(given, NEURON)
    assert adjusted == expected
    assert torch.ones(3, dtype=adjusted, device=NEURON).sum().item() == 3
    assert torch_utils.maybe_adjust_dtype_for_device(given, torch.device("cpu")) == given


@pytest.mark.parametrize("device", ["neuron", "neuron:0", NEURON])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latents_are_those_of_the_cpu(device: str | torch.device, dtype: torch.dtype) -> None:
    def draw(where: str | torch.device, *seeds: int) -> torch.Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        drawn = torch_utils.randn_tensor((2, 3), generators, torch.device(where), dtype)
        assert isinstance(drawn, torch.Tensor)
        return drawn

    for seeds in ((1,), (1, 2)):
        drawn = draw(device, *seeds)
        assert drawn.device == torch.device("neuron:0")
        assert torch.equal(drawn.cpu(), draw("cpu", *seeds))
    torch.manual_seed(5)
    drawn = torch_utils.randn_tensor((2, 3), None, device, dtype)
    torch.manual_seed(5)
    assert torch.equal(drawn.cpu(), torch.randn(2, 3, dtype=dtype))


def test_seeds() -> None:
    torch_utils.backend_manual_seed("neuron", 11)
    first = torch.rand(4, device="neuron")
    torch_utils.backend_manual_seed("neuron", 11)
    assert torch.equal(torch.rand(4, device="neuron"), first)


def test_memory() -> None:
    torch_utils.backend_empty_cache("neuron")
    torch_utils.empty_device_cache("neuron")
    torch_utils.backend_reset_peak_memory_stats("neuron")
    torch_utils.backend_reset_max_memory_allocated("neuron")
    before = torch_utils.backend_max_memory_allocated("neuron")
    block = torch.empty(1 << 20, device="neuron")
    assert torch_utils.backend_max_memory_allocated("neuron") >= before + block.nbytes
    free, total = torch_utils.TorchDeviceBackend("neuron").mem_get_info()
    assert 0 < free <= total


def test_the_rest() -> None:
    assert torch_utils.backend_device_count("neuron") == torch.neuron.device_count()  # type: ignore[attr-defined]
    torch_utils.backend_synchronize("neuron")
    backend = torch_utils.TorchDeviceBackend()
    assert backend.device == NEURON
    assert backend.current_device() == 0
