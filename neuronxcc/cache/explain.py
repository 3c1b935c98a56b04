"""Why a program was not in the cache: the entry that comes nearest, and what differs from it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from neuronxcc.cache.key import CacheKey
from neuronxcc.cache.local import LocalStore

_MOST_ENTRIES = 1000


def explain_miss(store: LocalStore | None, key: CacheKey, name: str) -> str:
    """One or more lines that say which parts of a key are new.

    Args:
        store: The local tier, which alone is looked at.
        key: The key that was missed.
        name: Name of the model that is compiled.
    """
    title = f"miss: {name or 'a model without a name'} ({key.folder})"
    if store is None:
        return f"{title}: there is no cache"
    best: tuple[int, Path, dict[str, Any], dict[str, tuple[str, str | None]]] | None = None
    for folder, description in islice(store.entries(), _MOST_ENTRIES):
        theirs = _parts(description)
        equal = sum(theirs.get(label, ("",))[0] == part.hash for label, part in key.parts.items())
        if theirs and (best is None or equal > best[0]):
            best = equal, folder, description, theirs
    if best is None:
        return f"{title}: {store.root} is empty"
    _, folder, description, theirs = best
    lines = [f"{title}: the nearest entry is {_named(folder, description)}; what differs:"]
    for label in sorted(key.parts.keys() | theirs.keys()):
        mine, other = key.parts.get(label), theirs.get(label)
        if mine is None or other is None:
            lines.append(f"  {label}: only {'there' if mine is None else 'here'}")
        elif mine.hash != other[0]:
            shown = mine.shown
            both = shown is not None and other[1] is not None
            lines.append(f"  {label}" + (f": {other[1]!r} there, {shown!r} here" if both else ""))
    if len(lines) == 1:
        lines.append("  nothing: its NEFF is missing or cannot be used")
    return "\n".join(lines)


def _named(folder: Path, description: dict[str, Any]) -> str:
    name = description.get("name")
    return f"{folder.name} of {name!r}" if isinstance(name, str) and name else folder.name


def _parts(description: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    """Hash and text by label of an entry's description; empty if it is not as it should be."""
    parts = description.get("parts")
    if not isinstance(parts, dict):
        return {}
    found = {}
    for label, part in parts.items():
        if not isinstance(part, dict) or not isinstance(part.get("hash"), str):
            return {}
        text = part.get("text")
        found[str(label)] = (part["hash"], text if isinstance(text, str) else None)
    return found
