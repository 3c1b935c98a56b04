"""What Lightning asks of an accelerator, answered by `torch.neuron`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from torch_neuronx import neuron

# The name of the accelerator, and of the strategy for one core.
NAME = "neuron"


def parse_devices(devices: int | str | list[int] | tuple[int, ...]) -> list[int]:
    """Indices of cores from what `devices=` takes.

    Args:
        devices: a number of cores (-1 for all), as an integer or a string; or their indices, as
            a list or as a string with commas.

    Raises:
        TypeError: it is something else.
        ValueError: there is no such core, or one is named twice.
    """
    count = neuron.device_count()
    if isinstance(devices, str):
        parts = [part.strip() for part in devices.split(",")]
        if not all(part.removeprefix("-").isdecimal() for part in parts if part):
            raise ValueError(f"devices={devices!r}: a number of cores or indices like '0,1'")
        numbers = [int(part) for part in parts if part]
        devices = numbers if "," in devices else numbers[0]
    if isinstance(devices, bool) or not isinstance(devices, (int, list, tuple)):
        raise TypeError(f"devices={devices!r}: a number of cores or a list of their indices")
    if isinstance(devices, int):
        chosen = list(range(count if devices == -1 else devices))
        # A negative number chooses nothing by range.
        wrong = devices > count or not chosen
    else:
        chosen = list(devices)
        wrong = not chosen or not set(chosen) <= set(range(count)) or len(set(chosen)) < len(chosen)
    if wrong:
        raise ValueError(
            f"devices={devices!r}: this machine has {count} NeuronCores, 0 to {count - 1}; each "
            "can be named once. NEURON_RT_VISIBLE_CORES and NEURON_PLATFORM_TARGET_OVERRIDE choose "
            "the machine."
        )
    return chosen


def accelerator(library: ModuleType) -> type[Any]:  # noqa: C901 - one class, whose base is given
    """The accelerator for `library`, which is lightning.fabric or lightning.pytorch."""
    base: Any = library.accelerators.Accelerator

    class NeuronAccelerator(base):  # type: ignore[misc] # both of Lightning's bases
        """NeuronCores, for `accelerator="neuron"`."""

        def setup_device(self, device: torch.device) -> None:
            """Make `device` the current one.

            Raises:
                ValueError: it is no NeuronCore. Lightning's "auto" strategy for one device is made
                    for "cpu" with any accelerator that isn't Lightning's own.
            """
            if device.type != NAME:
                raise ValueError(
                    f"The strategy has chosen the device '{device}' with accelerator='{NAME}': "
                    "Lightning does so for one device and strategy='auto'. Say "
                    f"strategy='{NAME}' for one core."
                )
            neuron.set_device(device)

        def teardown(self) -> None:
            """Give back memory that nothing uses."""
            neuron.empty_cache()

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """Indices of cores."""
            return parse_devices(devices)

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            """The devices of these indices."""
            return [torch.device(NAME, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            """All cores of the emulated machine."""
            return neuron.device_count()

        @staticmethod
        def is_available() -> bool:
            """Whether the device was registered."""
            return neuron.is_available()

        @staticmethod
        def name() -> str:
            """What `accelerator=` is given."""
            return NAME

        def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
            """Memory of a core, by the names of `torch.neuron.memory_stats`, bytes and counts."""
            return dict(neuron.memory_stats(device))

        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            """Enter it under its name."""
            accelerator_registry.register(NAME, cls, description="AWS NeuronCores", override=True)

    return NeuronAccelerator
