"""`neuronx-cc explain CODE`: what an error code means and what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from neuronxcc.error_codes import CODES, OWN, explained, find_code
from neuronxcc.nki_codes import NKI_CODES, explained_nki


def explain_command(words: Sequence[str]) -> int:
    """Run the subcommand; returns the exit code."""
    if not words:
        print(  # noqa: T201 - a command prints
            "[ERROR] no code was given. Write neuronx-cc explain NCC_EVRF010", file=sys.stderr
        )
        return 1
    for word in words:
        text = _text(word)
        if text is None:
            near = difflib.get_close_matches(
                word.upper(), [*CODES, *OWN, *NKI_CODES], n=1, cutoff=0.5
            )
            hint = f" Did you mean {near[0]}?" if near else ""
            print(f"[ERROR] '{word}' is no error code.{hint}", file=sys.stderr)  # noqa: T201
            return 1
        print(text)  # noqa: T201
    return 0


def _text(word: str) -> str | None:
    bare = word.strip().strip("[]").upper()
    if bare in NKI_CODES:
        return explained_nki(bare)
    code = find_code(word)
    return explained(code) if code is not None else None
