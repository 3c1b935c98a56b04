"""Dependencies that a kernel's author adds between named instructions: ``kernel.with_schedule``.

A recording runs in the order of the program, which every schedule must give the results of, so that
the edges are checked and change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Any

from nki.errors import NkiError, NkiTypeError

__all__ = ["Edges", "check", "edges_of"]

Edges = tuple[tuple[str, tuple[str, ...]], ...]


def edges_of(pairs: Iterable[Any]) -> Edges:
    """Return a schedule as pairs of a name and the names that it waits for.

    Args:
        pairs: ``(name, name)`` or ``(name, [name, ...])``.

    Raises:
        NkiTypeError: something else (NKI280).
        NkiError: instructions that wait for each other (NKI281).
    """
    edges = []
    for pair in pairs:
        try:
            after, before = pair
            names = (before,) if isinstance(before, str) else tuple(before)
        except (TypeError, ValueError):
            after, names = pair, (None,)
        if not all(isinstance(name, str) for name in (after, *names)):
            raise NkiTypeError(
                "NKI280",
                f"a schedule has the entry {pair!r}",
                "an entry is a pair of the name of an instruction and the name, or a list of "
                "names, of those that it waits for",
            )
        edges.append((after, names))
    graph: TopologicalSorter[str] = TopologicalSorter()
    for after, names in edges:
        graph.add(after, *names)
    try:
        graph.prepare()
    except CycleError as error:
        raise NkiError(
            "NKI281",
            f"in a schedule {' waits for '.join(reversed(error.args[1]))}",
            "remove one of these entries",
        ) from None
    return tuple(edges)


def check(edges: Edges, names: Collection[str]) -> None:
    """Check that a schedule names instructions of the kernel.

    Raises:
        NkiError: one is unknown (NKI281).
    """
    for after, before in edges:
        for name in (after, *before):
            if name not in names:
                raise NkiError(
                    "NKI281",
                    f"a schedule names {name!r}, and no instruction of the kernel has this name",
                    f"give it to one with name={name!r}; there are "
                    f"{', '.join(sorted(names)) or 'no names'}",
                )
