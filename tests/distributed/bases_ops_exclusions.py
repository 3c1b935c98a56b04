"""Operators of PyTorch's table that are not compared on DTensors, and why."""

from typing import Final

#: Operator -> why.
EXCLUDED: Final[dict[str, str]] = {}
