"""The check that loops on the device agree between cores."""

from __future__ import annotations

from itertools import zip_longest

from nki.errors import NkiError
from nki.merging.source import Source
from nki.recording import Block, Loop

__all__ = ["check_structure", "different", "header"]


def header(loop: Loop) -> tuple[str, int | str, int | str, int]:
    """Return what must agree; registers have values that nobody knows yet."""
    lower, upper = (
        bound if isinstance(bound, int) else "a register" for bound in (loop.lower, loop.upper)
    )
    return loop.kind, lower, upper, loop.step


def _shown(source: Source, loop: Loop | None) -> str:
    if loop is None:
        return "none"
    kind, lower, upper, step = header(loop)
    file, line = source.where(loop.location)
    span = "" if kind == "while" else f" from {lower} to {upper} in steps of {step}"
    return f"a {kind} loop{span} at {file}:{line}"


def different(a: Source, ours: Loop | None, b: Source, theirs: Loop | None) -> NkiError:
    """Return the error for loops that do not agree."""
    where = b.where(theirs.location) if theirs is not None else None
    if where is None and ours is not None:
        where = a.where(ours.location)
    return NkiError(
        "NKI301",
        f"{a.name} runs {_shown(a, ours)} on the device where {b.name} runs {_shown(b, theirs)}",
        "cores must run the same control flow: choose what they work on by nl.program_id, not "
        "which loops they run",
        where,
    )


def check_structure(a: Source, b: Source) -> None:
    """Check that the two cores of a logical core have the same loops.

    Raises:
        NkiError: they do not (NKI301).
    """
    _check(a, a.recording.body, b, b.recording.body)


def _check(a: Source, ours: Block, b: Source, theirs: Block) -> None:
    for x, y in zip_longest(ours.loops, theirs.loops):
        if x is None or y is None or header(x) != header(y):
            raise different(a, x, b, y)
        _check(a, x.body, b, y.body)
