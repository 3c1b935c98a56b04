"""The command `neuronx-cc`: a table of subcommands.

Each imports what it needs when it is called: nobody waits for the compiler to read a version.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence

from neuronxcc import __version__
from neuronxcc.cli.usage import usage
from neuronxcc.unread import ends_quietly

Command = Callable[[Sequence[str]], int]


def _version(_words: Sequence[str]) -> int:
    print(  # noqa: T201 - a command prints
        f"NeuronX Compiler version {__version__}\n\nPython version {platform.python_version()}\n"
        f"HWM version: none, programs run on emulated NeuronCores\nNumPy version "
        + importlib.metadata.version("numpy")
    )
    return 0


def _compile(words: Sequence[str]) -> int:
    from neuronxcc.cli.compile import compile_command  # noqa: PLC0415 - the whole compiler

    return compile_command(words)


def _list_operators(words: Sequence[str]) -> int:
    from neuronxcc.cli.operators import list_operators  # noqa: PLC0415 - the front end

    return list_operators(words)


def _explain(words: Sequence[str]) -> int:
    from neuronxcc.cli.codes import explain_command  # noqa: PLC0415 - the table of codes

    return explain_command(words)


COMMANDS: dict[str, Command] = {
    "compile": _compile,
    "list-operators": _list_operators,
    "explain": _explain,
    "--version": _version,
}


@ends_quietly
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
