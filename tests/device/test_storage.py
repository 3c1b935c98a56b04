"""Storages: bytes under tensors."""

import pytest
import torch

DEVICE = torch.device("neuron")


def test_untyped_storage() -> None:
    x = torch.arange(6, dtype=torch.int32, device=DEVICE)
    storage = x.untyped_storage()
    assert storage.device == torch.device("neuron:0")
    assert storage.nbytes() == len(storage) == 24
    assert storage.data_ptr() == x.data_ptr()
    assert storage.tolist() == x.cpu().untyped_storage().tolist()
    assert storage.cpu().device.type == "cpu"
    clone = storage.clone()
    clone.fill_(0)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_storage_on_a_device_by_name() -> None:
    storage = torch.UntypedStorage(16, device="neuron:1")
    assert storage.device == torch.device("neuron:1")
    assert storage.fill_(3).tolist() == [3] * 16  # type: ignore[attr-defined]
    assert storage[2] == 3
    storage[2] = 7
    assert storage[2] == 7
    with pytest.raises(IndexError, match="out of"):
        storage[16]


def test_copy_between_storages() -> None:
    host = torch.arange(8, dtype=torch.uint8).untyped_storage()
    device = torch.UntypedStorage(8, device=DEVICE)
    device.copy_(host)
    assert device.tolist() == list(range(8))
    other = torch.UntypedStorage(8, device="neuron:1")
    other.copy_(device, non_blocking=True)
    assert other.cpu().tolist() == list(range(8))


def test_storage_resize_keeps_the_beginning() -> None:
    x = torch.arange(4.0, device=DEVICE)
    storage = x.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert x.tolist() == [0, 1, 2, 3]
    assert storage.data_ptr() == x.data_ptr()
    storage.resize_(8)
    assert storage.nbytes() == 8
    before = torch.accelerator.memory_allocated(DEVICE)
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.accelerator.memory_allocated(DEVICE) < before


def test_storage_freed_and_grown_again_as_fsdp_does() -> None:
    x = torch.ones(1000, device=DEVICE)
    storage = x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    x.copy_(torch.arange(1000.0))
    assert x.sum().item() == 499_500


@pytest.mark.parametrize("shape", [(2, 3), (12,), (3, 4, 5), (0,), ()])
def test_tensor_resize(shape: tuple[int, ...]) -> None:
    x, y = torch.arange(6.0, device=DEVICE), torch.arange(6.0)
    with torch.no_grad():
        x.resize_(shape)
        y.resize_(shape)
    assert x.shape == y.shape
    assert x.stride() == y.stride()
    common = min(6, x.numel())
    assert x.flatten()[:common].cpu().equal(y.flatten()[:common])


def test_resize_to_channels_last() -> None:
    x = torch.empty(0, device=DEVICE).resize_(1, 3, 2, 2, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_set() -> None:
    x = torch.arange(6.0, device=DEVICE)
    y = torch.empty(0, device=DEVICE)
    y.set_(x)  # type: ignore[call-overload]
    assert y.data_ptr() == x.data_ptr()
    y.set_(x.untyped_storage(), 2, (2, 2), (1, 2))
    assert y.tolist() == [[2, 4], [3, 5]]
    y.set_(x.untyped_storage())
    assert y.numel() == 6
    y.set_()  # type: ignore[call-overload]
    assert y.numel() == 0
    assert y.device == torch.device("neuron:0")


def test_set_beyond_the_storage_grows_it() -> None:
    x = torch.arange(2.0, device=DEVICE)
    y = torch.empty(0, device=DEVICE).set_(x.untyped_storage(), 0, (4,), (1,))
    assert y.untyped_storage().nbytes() == 16
    assert y[:2].tolist() == [0, 1]


def test_set_to_memory_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device=DEVICE).set_(torch.ones(2).untyped_storage())


def test_data_swap() -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    x.data = torch.zeros(4, device=DEVICE)
    assert x.shape == (4,)
    assert x.requires_grad


def test_swap_tensors() -> None:
    x, y = torch.ones(2, device=DEVICE), torch.zeros(3)
    torch.utils.swap_tensors(x, y)
    assert (x.device.type, y.device.type) == ("cpu", "neuron")
    assert x.tolist() == [0, 0, 0]
    assert y.tolist() == [1, 1]


# PyTorch warns once in a process, so the warning can't be expected.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storage_is_of_the_device() -> None:
    storage = torch.ones(3, device=DEVICE).storage()
    assert storage.device == torch.device("neuron:0")
    assert storage.dtype == torch.float32
    assert len(storage) == 3
