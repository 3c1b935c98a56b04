"""What a Trainer says that runs on the CPU though there are NeuronCores.

Lightning's accelerator="auto" looks for TPUs, Apple's GPUs and CUDA and then takes the CPU,
whatever else is registered. It calls entry points of `lightning.pytorch.callbacks_factory` for
every Trainer; this is ours. It only speaks, as Lightning does about GPUs that are not used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from torch_neuronx import neuron

LINE = (
    "NeuronCores available: {count}, used: False. accelerator='auto' doesn't look for them: "
    "`import torch_neuronx.integrations.{module}`, then Trainer(accelerator='neuron')."
)


def _callbacks(library: str, module: str) -> list[Any]:
    if not neuron.is_available() or f"torch_neuronx.integrations.{module}" in sys.modules:
        return []  # who has imported that chooses the device knowingly
    base: Any = import_module(f"{library}.callbacks").Callback
    say = import_module(f"{library}.utilities").rank_zero_info

    class NeuronNotice(base):  # type: ignore[misc] # of the library that asks
        """Says once a Trainer that the device was not chosen."""

        def setup(self, trainer: Any, pl_module: object, stage: str) -> None:
            """Speak before the first step."""
            del pl_module, stage
            if trainer.strategy.root_device.type == "cpu":
                say(LINE.format(count=neuron.device_count(), module=module))

    return [NeuronNotice()]


def lightning() -> list[Any]:
    """Callbacks for a Trainer of `lightning`."""
    return _callbacks("lightning.pytorch", "lightning")


def pytorch_lightning() -> list[Any]:
    """Callbacks for a Trainer of `pytorch_lightning`."""
    return _callbacks("pytorch_lightning", "pytorch_lightning")
