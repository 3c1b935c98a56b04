"""Which NEFFs run on which machine."""

from __future__ import annotations

from neuronxcc.environment.runtime import NEURON_RT_ALLOW_LEGACY_NEFF
from neuronxcc.program.errors import NeffError, unsupported
from neuronxcc.targets import UnknownTargetError, get_target


def check_target(target: str, here: str, remedy: str) -> None:
    """Check that a NEFF may run on a machine.

    Those for the same NeuronCore may; those for an older one only if the environment says so; those
    for a newer one never.

    Args:
        target: What the NEFF was compiled for.
        here: What the machine is.
        remedy: How to compile it again, for the error.

    Raises:
        NeffError: It may not; status 10.
        VariableError: NEURON_RT_ALLOW_LEGACY_NEFF is wrong.
    """
    theirs, ours = _generation(target), _generation(here)
    older = -1 < theirs < ours
    if target == here or -1 < theirs == ours or (older and NEURON_RT_ALLOW_LEGACY_NEFF.get()):
        return
    more = f", or set {NEURON_RT_ALLOW_LEGACY_NEFF.name}=1" if older else ""
    raise unsupported(
        f"the model was compiled for {target}, this machine is a {here}: {remedy}{more}"
    )


def check_lnc(lnc: int, here: int) -> None:
    """Check that logical cores are those that a NEFF was compiled for.

    Raises:
        NeffError: They have another number of physical ones; status 2.
    """
    if lnc != here:
        raise NeffError(
            f"NRT_INVALID (status 2): the model was compiled for logical cores of {lnc} physical "
            f"ones, here they have {here}: compile it with --lnc={here}, or set "
            f"NEURON_LOGICAL_NC_CONFIG={lnc}"
        )


def _generation(target: str) -> int:
    """The generation of a target's cores, -1 for a name that is none."""
    try:
        return get_target(target).core.generation
    except UnknownTargetError:
        return -1
