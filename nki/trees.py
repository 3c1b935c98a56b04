"""Structures of arguments and results: lists, tuples, named tuples and dicts of anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["leaves", "mapped", "rebuilt"]


def rebuilt(like: Any, items: list[Any]) -> Any:
    """Return a list, tuple or named tuple like another, with other items."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def mapped(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return a structure with what `function` makes of every item of a kind; others stay."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, dict):
        return {key: mapped(item, kind, function) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return rebuilt(tree, [mapped(item, kind, function) for item in tree])
    return tree


def leaves(tree: Any, kind: type) -> Iterator[Any]:
    """Yield the items of a kind in a structure, in order; they are not searched themselves."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, (tuple, list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item, kind)
