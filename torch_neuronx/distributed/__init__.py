"""The ``neuron`` backend of ``torch.distributed``: collectives between NeuronCores.

Registering the device registers it (:mod:`torch_neuronx.distributed.group`), so that
``torch.distributed.init_process_group()`` finds it by the device's name. ``docs/distributed.md``
says how it works.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_neuronx.distributed.planning.errors import PlanError
    from torch_neuronx.distributed.planning.report import Plan
    from torch_neuronx.distributed.planning.session import plan

__all__ = ["Plan", "PlanError", "plan"]

# What takes long to import, and the module that it is in.
_LATER = {
    "Plan": "torch_neuronx.distributed.planning.report",
    "PlanError": "torch_neuronx.distributed.planning.errors",
    "plan": "torch_neuronx.distributed.planning.session",
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
