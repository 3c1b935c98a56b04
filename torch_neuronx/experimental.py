"""Names that the Neuron SDK had here before they became `torch_neuronx`'s own; they stay usable."""

from torch_neuronx.inference.placement import (
    async_load,
    lazy_load,
    multicore_context,
    neuron_cores_context,
    set_multicore,
    set_neuron_cores,
)

__all__ = [
    "async_load",
    "lazy_load",
    "multicore_context",
    "neuron_cores_context",
    "set_multicore",
    "set_neuron_cores",
]
