"""The interface of neuron devices for Dynamo, in its table under `neuron`.

Dynamo has no entry point for interfaces of devices, and importing it takes seconds, so this module
is imported at the moment at which Dynamo makes its table (see `_imports.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import (
    DeviceInterface,
    caching_worker_current_devices,
    caching_worker_device_properties,
    register_interface_for_device,
)

from torch_neuronx import neuron
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index

DEVICE = "neuron"


class NeuronWorker:
    """The questions of processes that compile for a device and must not use it."""

    @staticmethod
    def set_device(device: int) -> None:
        """Note the device that the parent process uses."""
        caching_worker_current_devices[DEVICE] = device

    @staticmethod
    def current_device() -> int:
        """Return the device that was noted, else this thread's."""
        noted = caching_worker_current_devices.get(DEVICE)
        return neuron.current_device() if noted is None else noted

    @staticmethod
    def get_device_properties(device: DeviceLike = None) -> neuron.NeuronDeviceProperties:
        """Return what a device is, as the parent process found it.

        Raises:
            RuntimeError: there is no such device.
        """
        if device is None:
            device = NeuronWorker.current_device()
        index = _get_device_index(device, optional=True)
        count = range(neuron.device_count())
        if DEVICE not in caching_worker_device_properties:
            caching_worker_device_properties[DEVICE] = [
                neuron.get_device_properties(i) for i in count
            ]
        known: list[neuron.NeuronDeviceProperties] = caching_worker_device_properties[DEVICE]
        return known[index] if 0 <= index < len(known) else neuron.get_device_properties(index)


class NeuronInterface(DeviceInterface):
    """`torch.neuron` under the names that Dynamo uses."""

    device = neuron.device
    Event = neuron.Event
    Stream = neuron.Stream
    Worker = NeuronWorker  # type: ignore[assignment]

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    exchange_device = staticmethod(neuron._exchange_device)
    maybe_exchange_device = staticmethod(neuron._maybe_exchange_device)
    is_available = staticmethod(neuron.is_available)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    get_device_properties = staticmethod(neuron.get_device_properties)
    is_bf16_supported = staticmethod(neuron.is_bf16_supported)
    memory_allocated = staticmethod(neuron.memory_allocated)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        neuron.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """Return the number of a device's current stream: streams have no other handle."""
        return neuron.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: DeviceLike = None) -> int:
        """Return the generation as CUDA's is written: 30 for (3, 0)."""
        major, minor = neuron.get_device_capability(device)
        return major * 10 + minor

    @classmethod
    def raise_if_triton_unavailable(cls, device: Any = None) -> None:  # noqa: ARG003
        """Say that there is no Triton.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "neuron devices run no Triton kernels: write the kernel in NKI (docs/nki.md)"
        )


def register() -> None:
    """Put the interface into Dynamo's table, for the device and for each of its cores."""
    register_interface_for_device(DEVICE, NeuronInterface)
    for index in range(neuron.device_count()):
        register_interface_for_device(f"{DEVICE}:{index}", NeuronInterface)
