"""From what users write for a device to its index."""

from typing import Protocol, runtime_checkable

import torch

from torch_neuronx import _C


@runtime_checkable
class DeviceContext(Protocol):
    """``torch.neuron.device(...)``, which stands for its device as in CUDA."""

    idx: int
    prev_idx: int


# What a device argument may be: an index, "neuron:1", torch.device, torch.neuron.device, or None
# for the current one.
DeviceLike = torch.device | str | int | DeviceContext | None


def _get_device_index(device: DeviceLike, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a device; torch.serialization calls this by its name.

    Args:
        device: what names the device.
        optional: whether a device without an index, or ``None``, means the current device.
        allow_cpu: whether a CPU device is accepted, as index -1.

    Raises:
        ValueError: the device is of another type, or has no index where one is needed.
        TypeError: it is nothing that names a device.
    """
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type == "cpu" and allow_cpu:
            return -1
        if device.type != "neuron":
            raise ValueError(f"expected a neuron device, but got: {device}")
        if device.index is not None:
            return device.index
    elif isinstance(device, DeviceContext):
        return device.idx if device.idx >= 0 else _C.current_device()
    elif device is not None:
        raise TypeError(
            f"expected a device, a string, an index or None, but got: {type(device).__name__}"
        )
    if not optional:
        raise ValueError(f"expected a neuron device with an index or an integer, but got: {device}")
    return _C.current_device()
