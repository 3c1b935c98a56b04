"""Which NEFFs run on which machine."""

from __future__ import annotations

from collections.abc import Mapping

from neuronxcc.program.errors import NeffError, unsupported

LEGACY_VARIABLE = "NEURON_RT_ALLOW_LEGACY_NEFF"
_TRUE = frozenset({"1", "true", "yes", "on"})
#: Targets with the same NeuronCore stand in one row; a later row is a newer one.
_GENERATIONS = (frozenset({"trn1", "trn1n", "inf2"}), frozenset({"trn2"}), frozenset({"trn3"}))


def allows_legacy(environ: Mapping[str, str]) -> bool:
    """Whether the environment allows NEFFs for older NeuronCores."""
    return environ.get(LEGACY_VARIABLE, "").strip().lower() in _TRUE


def check_target(target: str, here: str, environ: Mapping[str, str], remedy: str) -> None:
    """Check that a NEFF may run on a machine.

    Those for the same NeuronCore may; those for an older one only if the environment says so; those
    for a newer one never.

    Args:
        target: What the NEFF was compiled for.
        here: What the machine is.
        environ: Where NEURON_RT_ALLOW_LEGACY_NEFF is looked up.
        remedy: How to compile it again, for the error.

    Raises:
        NeffError: It may not; status 10.
    """
    theirs, ours = _generation(target), _generation(here)
    older = -1 < theirs < ours
    if target == here or -1 < theirs == ours or (older and allows_legacy(environ)):
        return
    more = f", or set {LEGACY_VARIABLE}=1" if older else ""
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
    return next((i for i, row in enumerate(_GENERATIONS) if target in row), -1)
