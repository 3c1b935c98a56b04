"""``while register:`` of Python as a loop of the device, as NKI before 0.6 writes it.

Python asks a register whether it is true at the top of such a loop, and again at its end. The first
question begins a loop of the device and is answered with yes, so that the body is recorded; the
second one ends it and is answered with no. Which questions come from a ``while`` is read from the
source: what asks elsewhere is refused, because a register has no value yet.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple, Protocol

from nki.errors import NkiError, is_own

__all__ = ["Conditions"]

Position = tuple[int | None, int | None, int | None, int | None]


class Loops(Protocol):
    """The recorder, which opens the loops."""

    def while_loop(self, initial: Any) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """See `nki.recorder.Recorder.while_loop`."""


class _Open(NamedTuple):
    frame: FrameType
    position: Position
    register: Any
    manager: AbstractContextManager[Any]
    following: list[Any]


class Conditions:
    """The loops of one kernel that are open."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops
        self._open: list[_Open] = []

    def decide(self, register: Any) -> bool | None:
        """Answer whether a register is true; None if no ``while`` asks.

        Raises:
            NkiError: the loop was entered, and one within it has been left by break (NKI245).
        """
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the documented way)
        while frame is not None and is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        position = _position(frame)
        if position not in _whiles(frame.f_code.co_filename):
            return None
        for depth, found in enumerate(self._open):
            if found.frame is frame and found.position == position:
                if depth != len(self._open) - 1:
                    raise self._left(self._open[-1])
                self._open.pop()
                found.following.append(register)
                found.manager.__exit__(None, None, None)
                return False
        manager = self._loops.while_loop(register)
        _, following = manager.__enter__()
        self._open.append(_Open(frame, position, register, manager, following))
        return True

    def finish(self) -> None:
        """Take note that the kernel has returned.

        Raises:
            NkiError: a loop was left by break or return (NKI245).
        """
        if self._open:
            raise self._left(self._open[-1])

    @staticmethod
    def _left(loop: _Open) -> NkiError:
        where = loop.frame.f_code.co_filename, loop.position[0] or 0
        return NkiError(
            "NKI245",
            "a loop over a register is left by break or return",
            "the device decides when it ends: let the body set the register to 0",
            where,
        )


def _position(frame: FrameType) -> Position:
    """Return what a frame runs at the moment: first and last line and column."""
    for number, position in enumerate(frame.f_code.co_positions()):
        if number == frame.f_lasti // 2:
            return position
    return (None, None, None, None)


@functools.lru_cache(maxsize=256)
def _whiles(file: str) -> frozenset[Position]:
    """Return where a file's ``while`` loops stand that a single value decides about."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    found: set[Position] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and isinstance(
            node.test, (ast.Name, ast.Attribute, ast.Subscript)
        ):
            # Python 3.11 gives the test the position of the whole statement.
            for part in (node, node.test):
                found.add((part.lineno, part.end_lineno, part.col_offset, part.end_col_offset))
    return frozenset(found)
