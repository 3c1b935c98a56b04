"""The random number generators: one per device, counter based, independent of the thread count.

A state is a CPU tensor of 16 bytes: seed and offset, 64 bits each.
"""

from collections.abc import Iterable

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index


def get_rng_state(device: DeviceLike = "neuron") -> torch.Tensor:
    """Return the state of a device's generator, uint8 on the CPU."""
    return _C.default_generator(_get_device_index(device, optional=True)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(_C.device_count())]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "neuron") -> None:
    """Set the state of a device's generator to one from :func:`get_rng_state`."""
    _C.default_generator(_get_device_index(device, optional=True)).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the states of the devices' generators, the first to ``neuron:0`` and so on."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed all devices' generators alike; ``torch.manual_seed`` calls this."""
    for index in range(_C.device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator from the operating system."""
    _C.default_generator(_C.current_device()).seed()


def seed_all() -> None:
    """Seed all devices' generators alike from the operating system."""
    manual_seed_all(_C.default_generator(_C.current_device()).seed())


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return _C.default_generator(_C.current_device()).initial_seed()
