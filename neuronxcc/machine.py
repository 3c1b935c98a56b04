"""Which machine the environment names: its target, and how its cores are grouped.

The device, the compiler and NKI ask here; each says by itself what holds where nothing is set.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronxcc.environment.machine import (
    NEURON_LOGICAL_NC_CONFIG,
    NEURON_PLATFORM_TARGET_OVERRIDE,
    NEURON_RT_VIRTUAL_CORE_SIZE,
)
from neuronxcc.targets import DEFAULT_TARGET, Target, UnknownTargetError, get_target, target_names

TARGET_VARIABLE = NEURON_PLATFORM_TARGET_OVERRIDE.name
#: Two names of one setting, the Logical NeuronCore configuration.
_LNC = (NEURON_LOGICAL_NC_CONFIG, NEURON_RT_VIRTUAL_CORE_SIZE)
LNC_VARIABLES = tuple(variable.name for variable in _LNC)


class MachineConfigError(ValueError):
    """An environment variable that describes no machine.

    Attributes:
        variable: Name of the variable.
        given: Its value.
        allowed: What would have been accepted, as text.
        remedy: What to do.
        code: The documented code of the same mistake in the Neuron SDK, or None.
    """

    def __init__(
        self, variable: str, given: str, allowed: str, remedy: str, code: str | None = None
    ) -> None:
        self.variable = variable
        self.given = given
        self.allowed = allowed
        self.remedy = remedy
        self.code = code
        prefix = f"[{code}] " if code else ""
        super().__init__(f"{prefix}{variable}={given!r} is not valid; allowed: {allowed}. {remedy}")


def named_target(environ: Mapping[str, str] | None = None) -> Target | None:
    """Return the target that the environment names, None if it names none.

    Raises:
        MachineConfigError: There is no such target.
    """
    name = NEURON_PLATFORM_TARGET_OVERRIDE.text(environ)
    if not name:
        return None
    try:
        return get_target(name)
    except UnknownTargetError as error:
        raise MachineConfigError(
            TARGET_VARIABLE,
            name,
            ", ".join(target_names()),
            error.remedy or f"Unset it for {DEFAULT_TARGET}, or name one of these.",
        ) from error


def named_lnc(environ: Mapping[str, str] | None, target: Target) -> tuple[str, int] | None:
    """Return the variable that says how many physical cores a logical one has, and the number.

    Returns:
        None if no variable says.

    Raises:
        MachineConfigError: The target does not group its cores like that, or two variables differ.
    """
    given = {variable.name: text for variable in _LNC if (text := variable.text(environ))}
    allowed = ", ".join(str(lnc) for lnc in target.supported_lnc)
    for name, value in given.items():
        if not value.isascii() or not value.isdigit() or int(value) not in target.supported_lnc:
            raise MachineConfigError(
                name,
                value,
                f"{allowed} on {target.name}",
                f"Unset it for the default of {target.name}, {target.default_lnc}, or choose a "
                f"target that groups its cores like that with {TARGET_VARIABLE}.",
                "NCC_EARG001",
            )
    if len({int(value) for value in given.values()}) > 1:
        first, second = LNC_VARIABLES
        raise MachineConfigError(
            second,
            given[second],
            f"the value of {first}, {given[first]}",
            "The two variables are names of one setting; set one of them, or both alike.",
            "NCC_EARG001",
        )
    return next(((name, int(value)) for name, value in given.items()), None)
