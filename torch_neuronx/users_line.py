"""The line of the user's program that asked for an operator."""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program; `filename` is "" where no Python code was running."""

    filename: str
    line: int
    backward: bool

    def __str__(self) -> str:
        if not self.filename:
            return "in the backward pass" if self.backward else "outside Python code"
        text = textwrap.shorten(linecache.getline(self.filename, self.line), 100)
        place = f"{self.filename}:{self.line}" + (f": {text}" if text else "")
        return f"in the backward pass started at {place}" if self.backward else f"at {place}"


# Not resolved: code objects carry the path they were imported by, links and all.
_PACKAGE = str(Path(__file__).parent) + os.sep
_PRINTING = os.sep + os.path.join("torch", "_tensor_str.py")  # noqa: PTH118  (a suffix, not a path)
_TORCH = os.sep + "torch" + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    # At the first report, not at import: sysconfig reads its data for milliseconds.
    return tuple({sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib")})


def users_line(frame: FrameType | None) -> SourceLine | None:
    """Find the user's line; None if PyTorch is printing a tensor."""
    return line_among(_outwards(frame))


def _outwards(frame: FrameType | None) -> Iterator[tuple[str, str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno
        frame = frame.f_back


def line_among(frames: Iterable[tuple[str, str, int]]) -> SourceLine | None:
    """Choose the user's line among frames (file, function, line), of which the innermost is first.

    The innermost frame outside all installed packages wins. A program that is itself installed has
    none; then it is the innermost frame outside torch and this package. None if PyTorch is printing
    a tensor.
    """
    installed: tuple[str, int] | None = None
    backward = python = False
    for name, function, line in frames:
        if name.endswith(_PRINTING):
            return None
        backward = backward or function == "_engine_run_backward"
        if any(part in name for part in _INSTALLED):
            if installed is None and _TORCH not in name:
                installed = name, line
        elif not name.startswith((_PACKAGE, "<frozen ", *_standard_library())):
            return SourceLine(name, line, backward)
        python = python or not name.startswith(_PACKAGE)
    if installed is not None:
        return SourceLine(*installed, backward)
    # A thread of the autograd engine has no Python frame but those of the warning itself.
    return SourceLine("", 0, backward or not python)
