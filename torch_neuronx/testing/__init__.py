"""Faults on demand, so that programs can be tested against them; docs/faults.md."""

from torch_neuronx.testing.inject import FaultError, inject
from torch_neuronx.testing.table import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "FaultError", "inject"]
