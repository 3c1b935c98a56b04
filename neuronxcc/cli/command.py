"""What `neuronx-cc` does with its words: a table of subcommands."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence

import numpy as np

from neuronxcc import __version__
from neuronxcc.cli.codes import explain_command
from neuronxcc.cli.compile import compile_command
from neuronxcc.cli.operators import list_operators
from neuronxcc.cli.usage import usage

Command = Callable[[Sequence[str]], int]


def _version(_words: Sequence[str]) -> int:
    print(  # noqa: T201 - a command prints
        f"NeuronX Compiler version {__version__}\n\nPython version {platform.python_version()}\n"
        f"HWM version: none, programs run on emulated NeuronCores\nNumPy version {np.__version__}"
    )
    return 0


COMMANDS: dict[str, Command] = {
    "compile": compile_command,
    "list-operators": list_operators,
    "explain": explain_command,
    "--version": _version,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its words, without the name; `sys.argv[1:]` if None.

    Returns:
        The exit code: 0, or 1 after an error that was printed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    if name in {"--help", "-h", "help"} or (name in COMMANDS and _asks_for_help(words[1:])):
        print(usage(name if name in COMMANDS else ""))  # noqa: T201
        return 0
    command = COMMANDS.get(name)
    if command is None:
        said = f"'{name}' is no command of neuronx-cc" if words else "no command was given"
        print(f"[ERROR] {said}\n{usage('')}", file=sys.stderr)  # noqa: T201
        return 1
    return command(words[1:])


def _asks_for_help(words: Sequence[str]) -> bool:
    return "--help" in words or "-h" in words
