"""The registry as `docs/environment.md`, and what of it is set, for people."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from neuronxcc.environment.registry import SECTIONS, VARIABLES, unknown
from neuronxcc.environment.variable import Reader, Section, Variable, VariableError

_LINK = re.compile(r"\[[^]]*\]\(([^)]*)\)")
_HEAD = """\
# Environment variables

Every variable TorchNeuron reads. Those that begin with `NEURON_` are the Neuron SDK's and mean
what its public documentation says; those that begin with `TORCH_NEURONX_` are this project's
own. An empty variable counts as unset, and blanks around a value don't count. Words may be
written in any letter case, and what is 0 or 1 may be `false`, `no`, `off` or `true`, `yes`,
`on` too, except where the native core is the reader.

`python -m torch_neuronx.env` prints what is set, what it does, and names that nobody knows,
with the one that was probably meant. `python -m neuronxcc.environment` prints the same without
loading the device, also where a wrong value keeps it from loading. This page is made by
`python -m torch_neuronx.env --markdown`.

The variables that describe the machine are read once, when the device is registered: at the end
of `import torch`, or at `import torch_neuronx`. Set them before Python starts, or at least
before the first of these imports. A wrong value never breaks `import torch`. Then
`torch.neuron.is_available()` is False and warns once with the reason, and
`import torch_neuronx` raises `NeuronUnavailableError` with it: the variable, its value, what is
allowed, what to do, and the SDK's code where one exists."""


def markdown() -> str:
    """Return the page."""
    return "\n\n".join([_HEAD, *map(_section, SECTIONS)]) + "\n"


def _section(section: Section) -> str:
    table = [
        "| Variable | Default | Meaning | Source | Read by |",
        "|---|---|---|---|---|",
        *map(_row, section.variables),
    ]
    parts = (f"## {section.title}", section.before, "\n".join(table), section.after)
    return "\n\n".join(filter(None, parts))


def _row(variable: Variable[Any]) -> str:
    names = f"`{variable.name}`"
    if variable.components:
        names += f", `{variable.name}_<component>`"
    cells = (names, variable.shown, variable.meaning, variable.source, _readers(variable))
    return f"| {' | '.join(cells)} |"


def _readers(variable: Variable[Any]) -> str:
    return ", ".join(r.value for r in Reader if r in variable.readers) or "nobody"


def report(environ: Mapping[str, str]) -> str:
    """Return what is set in an environment, what it does, and what nobody knows."""
    return "\n".join(_lines(environ)) or "No variable of TorchNeuron is set."


def wrong(environ: Mapping[str, str]) -> list[VariableError]:
    """Return the errors of the values that are not allowed."""
    errors = []
    for name, variable in VARIABLES.items():
        try:
            variable.get(environ, name[len(variable.name) + 1 :])
        except VariableError as error:
            errors.append(error)
    return errors


def _lines(environ: Mapping[str, str]) -> Iterator[str]:
    errors = {error.variable: error for error in wrong(environ)}
    for name, variable in VARIABLES.items():
        if not environ.get(name, "").strip():
            continue
        yield f"{name}={environ[name]}"
        if name in errors:
            yield f"    WRONG: allowed: {errors[name].allowed}"
        effect = "" if variable.readers else "Changes nothing here. "
        text = f"{effect}{variable.meaning} (default: {variable.shown}; {_readers(variable)})"
        plain = _LINK.sub(r"docs/\1", text).replace("`", "")
        yield textwrap.fill(plain, 100, initial_indent="    ", subsequent_indent="    ")
    for name, similar in unknown(environ).items():
        hint = f"did you mean {similar}?" if similar else "TorchNeuron does not read it"
        yield f"{name}={environ[name]}\n    UNKNOWN: {hint}"
