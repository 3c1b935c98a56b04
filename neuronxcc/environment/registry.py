"""All variables, in the order of the documentation."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any, Final

from neuronxcc.environment import (
    arithmetic,
    compilation,
    development,
    kernels,
    machine,
    observation,
    runtime,
    tools,
)
from neuronxcc.environment.variable import Section, Variable

SECTIONS: Final[tuple[Section, ...]] = (
    machine.MACHINE,
    machine.DEVICE,
    machine.EAGER,
    machine.DISTRIBUTED,
    compilation.PORTABILITY,
    compilation.COMPILATION,
    compilation.AHEAD,
    kernels.NKI,
    compilation.ROUNDING,
    runtime.RUNTIME,
    tools.TOOLS,
    observation.OBSERVATION,
    arithmetic.ARITHMETIC,
    arithmetic.THREADS,
    development.DEVELOPMENT,
)
#: By every name that somebody may set.
VARIABLES: Final[Mapping[str, Variable[Any]]] = {
    name: variable
    for section in SECTIONS
    for variable in section.variables
    for name in variable.names
}
_PREFIXES = ("NEURON_", "TORCH_NEURONX_", "NKI_")


def unknown(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that look like ours and that nobody knows.

    Args:
        environ: The environment; that of the process if None.

    Returns:
        By name the most similar known name, "" if there is none.
    """
    variables = os.environ if environ is None else environ
    return {
        name: next(iter(difflib.get_close_matches(name, VARIABLES, 1, 0.8)), "")
        for name in sorted(variables)
        if name.startswith(_PREFIXES) and name not in VARIABLES
    }
