"""Profiles of programs on the device; docs/profiling.md.

`torch.profiler` works by itself. `NeuronConfig` says what is kept, `NeuronProfiler` writes the
output directory that `neuron-explorer` reads.
"""

from torch_neuronx.profiling.config import NeuronConfig, ProfileMode
from torch_neuronx.profiling.profiler import NeuronProfiler

__all__ = ["NeuronConfig", "NeuronProfiler", "ProfileMode"]
