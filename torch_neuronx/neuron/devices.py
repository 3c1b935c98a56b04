"""Devices: how many there are, which is selected, what they are, and when they are used first."""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torch_neuronx import _C, _config
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index


@dataclass(frozen=True, slots=True)
class NeuronDeviceProperties:
    """The properties of a device, one logical NeuronCore of the emulated machine.

    Attributes:
        name: the target, e.g. ``"trn2"``.
        total_memory: its HBM in bytes.
        major: generation of the NeuronCore, as the first number of its capability.
        minor: the second number of its capability.
        multi_processor_count: physical NeuronCores in it, as ``lnc``.
        lnc: the Logical NeuronCore configuration.
        chip_name: e.g. ``"Trainium2"``.
        neuroncore_version: e.g. ``"v3"``.
        logical_core: its number in the machine; it differs from the device index when
            ``NEURON_RT_VISIBLE_CORES`` selects other cores than the first.
        chip: the number of its chip in the machine.
    """

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    lnc: int
    chip_name: str
    neuroncore_version: str
    logical_core: int
    chip: int


def is_available() -> bool:
    """Return whether there is a device. Does not initialise it."""
    return _C.device_count() > 0


def device_count() -> int:
    """Return the number of devices: logical NeuronCores visible to this process."""
    return _C.device_count()


def is_initialized() -> bool:
    """Return whether the device was used in this process."""
    return _C.is_initialized()


def init() -> None:
    """Initialise the device; otherwise its first use does.

    Raises:
        RuntimeError: in a child forked after the parent had used the device.
    """
    _C.init()


def _lazy_init() -> None:
    _C.init()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def _lazy_call(callable: Callable[[], Any], **_kwargs: bool) -> None:
    """Run a call that other backends put off until the device is initialised.

    Seeding, which is what this is for, needs no initialisation here: generators exist from the
    start. So there is no queue, and nothing is lost when the first use happens in C++.
    """
    callable()


def current_device() -> int:
    """Return the index of the device selected in this thread.

    Until one is selected this is the core of ``LOCAL_RANK`` if a launcher set that, and else 0.
    """
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Select a device for this thread; a negative index does nothing.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    if index >= 0:
        _C.set_device(index)


def _exchange_device(device: int) -> int:
    """Select a device and return the one selected before, or -1 for a negative index."""
    return _C.exchange_device(device) if device >= 0 else -1


def _maybe_exchange_device(device: int) -> int:
    """As :func:`_exchange_device`; the name PyTorch looks for."""
    return _C.maybe_exchange_device(device) if device >= 0 else -1


class device:
    """Select a device inside a ``with`` block; ``None`` and negative indices leave it as it is."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _maybe_exchange_device(self.idx)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Select the device of a tensor or storage inside a ``with`` block, if it is a neuron one."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage | torch.TypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "neuron" else None)


def get_device_properties(device: DeviceLike = None) -> NeuronDeviceProperties:
    """Return what a device is.

    Raises:
        RuntimeError: there is no such device.
    """
    index = _get_device_index(device, optional=True)
    machine = _config.machine()
    if not 0 <= index < machine.device_count:
        raise RuntimeError(
            "The device index is out of range. It must be in "
            f"[0, {machine.device_count}), but got {index}."
        )
    target = machine.target
    logical_core = machine.visible_cores[index]
    return NeuronDeviceProperties(
        name=target.name,
        total_memory=machine.hbm_bytes,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=machine.lnc,
        lnc=machine.lnc,
        chip_name=target.chip_name,
        neuroncore_version=target.core.version,
        logical_core=logical_core,
        chip=logical_core // target.logical_cores_per_chip(machine.lnc),
    )


def get_device_name(device: DeviceLike = None) -> str:
    """Return the name of a device's target, e.g. ``"trn2"``."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Return the generation of the NeuronCore: (2, 0) for trn1 and inf2, (3, 0) for trn2."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    """Return True: every NeuronCore of these targets computes with bfloat16."""
    return True


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Return whether copies between two devices need no detour; they never do.

    Raises:
        RuntimeError: one of them does not exist.
    """
    for each in (device, peer_device):
        get_device_properties(each)
    return True


def synchronize(device: DeviceLike = None) -> None:
    """Wait until all work issued to a device is done."""
    _C.synchronize(_get_device_index(device, optional=True))
