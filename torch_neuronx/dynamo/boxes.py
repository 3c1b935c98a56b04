"""AOTAutograd's calling convention: a function takes its arguments in a list, and may empty it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Boxed = Callable[[list[Any]], list[Any]]


def takes_list(call: Boxed) -> Boxed:
    """Tell AOTAutograd that a function has this convention."""
    call._boxed_call = True  # type: ignore[attr-defined]
    return call
