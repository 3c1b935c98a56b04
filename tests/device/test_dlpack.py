"""Sharing memory through DLPack capsules.

`torch.from_dlpack(tensor)` asks `Tensor.__dlpack_device__` first, which in PyTorch 2.13 compares
the device's name with "privateuse1": no out-of-tree device is ever called that. So tensors are
passed on as capsules, which PyTorch makes and reads in C++.
"""

import pytest
import torch
from torch.utils import dlpack

DEVICE = torch.device("neuron:1")


def exchanged(x: torch.Tensor) -> torch.Tensor:
    return dlpack.from_dlpack(dlpack.to_dlpack(x))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_round_trip_shares_memory(dtype: torch.dtype) -> None:
    x = torch.arange(12, device=DEVICE).view(3, 4).to(dtype)
    y = exchanged(x)
    assert y.device == DEVICE
    assert y.dtype == dtype
    assert y.data_ptr() == x.data_ptr()
    y.zero_()
    assert not x.any()


def test_views_keep_their_strides() -> None:
    x = torch.arange(24.0, device=DEVICE).view(4, 6)[1:, ::2].t()
    y = exchanged(x)
    assert y.stride() == x.stride()
    assert y.equal(x)


def test_capsule_keeps_the_memory() -> None:
    x = torch.full((1000,), 5.0, device=DEVICE)
    capsule = dlpack.to_dlpack(x)  # type: ignore[attr-defined]
    del x
    torch.zeros(1000, device=DEVICE)
    assert dlpack.from_dlpack(capsule).eq(5).all()
    with pytest.raises(RuntimeError, match="consumed"):
        dlpack.from_dlpack(capsule)


def test_memory_is_freed_after_the_last_owner() -> None:
    before = torch.accelerator.memory_allocated(DEVICE)
    x = torch.ones(1000, device=DEVICE)
    y = exchanged(x)
    del x
    assert torch.accelerator.memory_allocated(DEVICE) > before
    del y
    assert torch.accelerator.memory_allocated(DEVICE) == before
    dlpack.to_dlpack(torch.ones(1000, device=DEVICE))  # type: ignore[attr-defined]
    assert torch.accelerator.memory_allocated(DEVICE) == before


def test_pytorch_refuses_the_protocol_without_capsule() -> None:
    """Goes red when PyTorch repairs it; then the capsules above can go."""
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(ValueError, match="Unknown device type neuron for Dlpack"):
        torch.from_dlpack(x)  # type: ignore[attr-defined]
