"""Where `neuron::Model` enters Python to be loaded: before anything heavy is imported."""

from __future__ import annotations

from typing import Any

from neuronxcc.collector import paused


def load(*args: Any) -> dict[str, Any]:
    """Load a model, see `loading.load`.

    The import and the program make many objects that stay. In a process with PyTorch in it the
    collector of cycles would look at half a million others meanwhile, for 0.15 s.
    """
    with paused():
        from torch_neuronx.inference import loading  # noqa: PLC0415 - inside the pause

        return loading.load(*args)
