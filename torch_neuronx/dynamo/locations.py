"""From the stack traces that PyTorch keeps with FX nodes to lines of the user's program."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from neuronxcc.ir.graph import Loc

_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in .*$')
_INSTALLED = ("site-packages", "dist-packages")


def location(node: torch.fx.Node) -> Loc | None:
    """The line that asked for this operation, None if PyTorch recorded none.

    An argument, or a tensor that the graph holds, has the line of its first use.
    """
    nodes = node.users if node.op in {"placeholder", "get_attr"} else [node]
    for asking in nodes:
        trace = asking.meta.get("stack_trace")
        found = _innermost(trace) if isinstance(trace, str) else None
        if found is not None:
            file, line, text = found
            return Loc(file, line, text, operator_name(asking.target))
    return None


def operator_name(target: Any) -> str:
    """How people write the target of a node: "aten.gelu.default"."""
    if isinstance(target, str):
        return target
    name = str(target)
    return name if "." in name else str(getattr(target, "__name__", name))


@functools.lru_cache(maxsize=4096)
def _innermost(trace: str) -> tuple[str, int, str] | None:
    """The innermost frame outside installed packages; if there is none the innermost of all."""
    lines = trace.splitlines()
    last: tuple[str, int, str] | None = None
    for number in range(len(lines) - 1, -1, -1):
        match = _FRAME.match(lines[number])
        if match is None:
            continue
        text = lines[number + 1].strip() if number + 1 < len(lines) else ""
        found = (match[1], int(match[2]), text)
        if not any(part in match[1] for part in _INSTALLED):
            return found
        last = last or found
    return last
