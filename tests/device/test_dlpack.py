"""Sharing memory through DLPack."""

import pytest
import torch

DEVICE = torch.device("neuron:1")
KDLEXTDEV = 12


def test_device_of_the_capsule() -> None:
    x = torch.arange(3, device=DEVICE)
    assert x.__dlpack_device__() == (KDLEXTDEV, 1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_round_trip_shares_memory(dtype: torch.dtype) -> None:
    x = torch.arange(12, device=DEVICE).view(3, 4).to(dtype)
    y = torch.from_dlpack(x)
    assert y.device == DEVICE
    assert y.dtype == dtype
    assert y.data_ptr() == x.data_ptr()
    y.zero_()
    assert not x.any()


def test_views_keep_their_strides() -> None:
    x = torch.arange(24.0, device=DEVICE).view(4, 6)[1:, ::2].t()
    y = torch.from_dlpack(x)
    assert y.stride() == x.stride()
    assert y.equal(x)


def test_capsule_keeps_the_memory() -> None:
    x = torch.full((1000,), 5.0, device=DEVICE)
    capsule = torch.utils.dlpack.to_dlpack(x)
    del x
    torch.zeros(1000, device=DEVICE)
    assert torch.from_dlpack(capsule).eq(5).all()
    with pytest.raises(RuntimeError, match="consumed"):
        torch.from_dlpack(capsule)


def test_memory_is_freed_after_the_last_owner() -> None:
    before = torch.accelerator.memory_allocated(DEVICE)
    x = torch.ones(1000, device=DEVICE)
    y = torch.from_dlpack(x)
    del x
    assert torch.accelerator.memory_allocated(DEVICE) > before
    del y
    assert torch.accelerator.memory_allocated(DEVICE) == before
    torch.utils.dlpack.to_dlpack(torch.ones(1000, device=DEVICE))
    assert torch.accelerator.memory_allocated(DEVICE) == before


def test_gradients_are_refused() -> None:
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x)


def test_a_device_tensor_does_not_become_an_array() -> None:
    import numpy as np  # noqa: PLC0415

    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(torch.ones(2, device=DEVICE))
