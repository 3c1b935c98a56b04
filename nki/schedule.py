"""Dependency edges between named instructions: ``kernel.with_schedule([("b", "a")])``.

Instructions run here in the order in which they were recorded, which every legal schedule must
give the results of. Edges are therefore only checked: that they name instructions, each once, and
that no instruction waits for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nki.errors import NkiError, NkiTypeError

__all__ = ["Edges", "check_edges", "edges_of"]

Edges = tuple[tuple[str, tuple[str, ...]], ...]


def edges_of(given: Any) -> Edges:
    """Return edges as (instruction, those that it waits for).

    Args:
        given: pairs of a name and a name or a list of names.

    Raises:
        NkiTypeError: something else (NKI280).
    """
    found = []
    for pair in given if isinstance(given, Iterable) else (given,):
        match pair:
            case (str(name), str(other)):
                found.append((name, (other,)))
            case (str(name), [*others]) if all(isinstance(other, str) for other in others):
                found.append((name, tuple(others)))
            case _:
                raise NkiTypeError(
                    "NKI280",
                    f"{pair!r} is no edge of a schedule",
                    'write ("later", "earlier") or ("later", ["earlier", ...])',
                )
    return tuple(found)


def check_edges(edges: Edges, names: Mapping[str, Sequence[tuple[str, int]]]) -> None:
    """Check edges against a recorded kernel.

    Args:
        edges: from :func:`edges_of`.
        names: the user's lines of the instructions with each name.

    Raises:
        NkiError: a name that no instruction has, or several (NKI281), or instructions that wait for
            each other (NKI282).
    """
    before: dict[str, set[str]] = {}
    for later, earlier in edges:
        for name in (later, *earlier):
            count = len(names.get(name, ()))
            if count != 1:
                raise NkiError(
                    "NKI281",
                    f"the schedule names {name!r}, and {count or 'no'} instructions have that name",
                    f"give exactly one instruction name={name!r}",
                )
        before.setdefault(later, set()).update(earlier)
    done: set[str] = set()
    for start in before:
        _visit(start, before, done, [])


def _visit(name: str, before: Mapping[str, set[str]], done: set[str], path: list[str]) -> None:
    if name in path:
        circle = " waits for ".join([*path[path.index(name) :], name])
        raise NkiError("NKI282", f"in the schedule {circle}", "remove one of these edges")
    if name in done:
        return
    path.append(name)
    for other in sorted(before.get(name, ())):
        _visit(other, before, done, path)
    path.pop()
    done.add(name)
