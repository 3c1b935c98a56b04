"""`neuronx-cc explain CODE`: what an error code means and what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from neuronxcc.error_codes import CODES, OWN, explained, find_code


def explain_command(words: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code."""
    if not words:
        print(  # noqa: T201 - a command prints
            "[ERROR] no code was given. Write neuronx-cc explain NCC_EVRF010", file=sys.stderr
        )
        return 1
    for word in words:
        code = find_code(word)
        if code is None:
            near = difflib.get_close_matches(word.upper(), [*CODES, *OWN], n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            print(f"[ERROR] '{word}' is no error code.{hint}", file=sys.stderr)  # noqa: T201
            return 1
        print(explained(code))  # noqa: T201
    return 0
