"""Makes tapes, instruction by instruction."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from neuronxcc.ir.node import Literal
from neuronxcc.program.steps.tape import TapeStep
from neuronxcc.program.tape_functions import TapeFunction


class TapeWriter:
    """Collects the instructions of a tape."""

    def __init__(self) -> None:
        self._code = array("q")
        self._group = -1
        self._functions: dict[TapeFunction, int] = {}
        self._locations: dict[str, int] = {}

    def function(self, function: TapeFunction) -> int:
        """Return the number of a function; equal ones are one."""
        return self._functions.setdefault(function, len(self._functions))

    def location(self, location: str) -> int:
        """Return the number of a user's line."""
        return self._locations.setdefault(location, len(self._locations))

    def group(self, chunks: int) -> None:
        """Begin a group; 0 for functions that do not work lane by lane."""
        self._group = len(self._code)
        self._code.fromlist([0, chunks])

    def add(self, function: int, location: int, places: Iterable[int]) -> None:
        """Append an instruction to the group.

        Args:
            function: Its number.
            location: Its number.
            places: Buffer and byte offset of every slot, flat.
        """
        self._code[self._group] += 1
        self._code.fromlist([function, location, *places])  # twice as fast as `extend`

    def __len__(self) -> int:
        """Words so far."""
        return len(self._code)

    def step(self) -> TapeStep:
        """Return the tape."""
        code = np.frombuffer(self._code, np.int64) if self._code else np.empty(0, np.int64)
        return TapeStep(tuple(self._functions), Literal(code), tuple(self._locations))
