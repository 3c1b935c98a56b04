"""Functions that scripts for the Neuron SDK expect in `torch_neuronx.utils`."""

from torch_neuronx import _config

__all__ = ["get_platform_target"]


def get_platform_target() -> str:
    """The name of the emulated machine's chip: "trn1", "inf2", "trn2" and so on.

    `NEURON_PLATFORM_TARGET_OVERRIDE` chooses it. The name is the public programming guide's.
    """
    return _config.machine().target.name
