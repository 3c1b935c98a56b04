"""Variables of the Neuron runtime that NEFF files, traced models and nrtpy follow."""

from __future__ import annotations

import re

from neuronxcc.environment.variable import FLAG, TEXT, Kind, Reader, Section, choice, number

_GUIDE = "Runtime configuration guide"
_NOTES = "Runtime release notes"
_COMPONENTS = ("TDRV", "NMGR", "NRT")
_ADDRESS = re.compile(r"\[?(?P<host>[^\[\]]+?)\]?:(?P<port>\d{1,5})", re.ASCII)
LOG_LEVELS = ("quiet", "error", "warning", "info", "debug", "trace")


def _address(text: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise ValueError(text)
    return match["host"], int(match["port"])


RUNTIME = Section(
    "NEFF files and nrtpy",
    "[neff.md](neff.md#running-a-neff-from-python) says what they do. All but the first are read "
    "for callers of `nrtpy` alone.",
)

NEURON_RT_ALLOW_LEGACY_NEFF = RUNTIME.variable(
    "NEURON_RT_ALLOW_LEGACY_NEFF", FLAG,
    "1 or true: run NEFFs for older NeuronCores, in traced models too",
    default=False, source=_GUIDE, readers={Reader.COMPILER},
)  # fmt: skip
NEURON_RT_VALIDATE_HASH = RUNTIME.variable(
    "NEURON_RT_VALIDATE_HASH", TEXT,
    "Accepted: the hash is always checked",
    default="", source=_GUIDE, said="false",
)  # fmt: skip
NEURON_RT_LOG_LEVEL = RUNTIME.variable(
    "NEURON_RT_LOG_LEVEL", choice(*LOG_LEVELS),
    "Which messages of the runtime are logged: `QUIET` `ERROR` `WARNING` `INFO` `DEBUG` `TRACE`, "
    "of the components `TDRV` `NMGR` `NRT`",
    default="error", source=_GUIDE, readers={Reader.NRTPY}, said="`ERROR`", components=_COMPONENTS,
)  # fmt: skip
NEURON_RT_LOG_LOCATION = RUNTIME.variable(
    "NEURON_RT_LOG_LOCATION", TEXT,
    "Where they are logged: `console` (standard error), `syslog`, or a file",
    default="console", source=_GUIDE, readers={Reader.NRTPY}, components=_COMPONENTS,
)  # fmt: skip
NEURON_RT_DBG_DUMP_INPUTS_ON_ERR = RUNTIME.variable(
    "NEURON_RT_DBG_DUMP_INPUTS_ON_ERR", number(0, (1 << 31) - 1, "a status"),
    "A status: the inputs of executions that end with it are written to the working directory",
    default=0, source="Runtime troubleshooting", readers={Reader.NRTPY},
)  # fmt: skip
NEURON_FAIL_ON_NAN = RUNTIME.variable(
    "NEURON_FAIL_ON_NAN", FLAG,
    "1: a NaN in a result is an error",
    default=False, source=_NOTES, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_NUMERICAL_ERRORS_VERBOSITY = RUNTIME.variable(
    "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY", TEXT,
    "`critical`: a NaN in a result is an error",
    default="", source=_NOTES, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_ROOT_COMM_ID = RUNTIME.variable(
    "NEURON_RT_ROOT_COMM_ID", Kind(_address, "<address>:<port> of rank 0"),
    "`<address>:<port>` of rank 0, where the ranks of a NEFF with collectives meet",
    default=None, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_EXEC_TIMEOUT = RUNTIME.variable(
    "NEURON_RT_EXEC_TIMEOUT", number(1, (1 << 31) - 1, "seconds"),
    "Seconds that such a collective waits for the others",
    default=None, source=_GUIDE, readers={Reader.DEVICE}, said="that of process groups",
)  # fmt: skip
