"""`NEURON_DUMP=dir`: every stage of every compilation as a text file.

A graph gets a directory of its own with numbered files: the FX graph, the tensor IR as imported and
after every pass that changed it, and the program. The compile cache is not read meanwhile, because
a program that comes from it has no stages.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

VARIABLE = "NEURON_DUMP"


def directory() -> Path | None:
    """Where to write, None for nowhere."""
    place = os.environ.get(VARIABLE, "").strip()
    return Path(place).expanduser() if place else None


def observer(graph: str) -> Callable[[str, Callable[[], str]], None] | None:
    """Something that is told of every stage of a graph, None if nobody wants to see it."""
    place = directory()
    if place is None:
        return None
    folder = place / graph
    numbers = itertools.count(len(list(folder.glob("*.txt"))) if folder.is_dir() else 0)

    def observe(stage: str, text: Callable[[], str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{next(numbers):02d}.{stage.replace(' ', '-')}.txt"
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(text() + "\n")
        partial.replace(path)

    return observe
