"""How often loops run whose bounds only a run of the kernel knows.

The kernel is run once in NumPy (`nki.reference`) on copies of its arguments, and each loop is
watched. An iteration has the *shape* of the loops within it; iterations of one shape that follow
each other are counted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.recording import Block, Loop, Recording
from nki.reference import Machine

__all__ = ["Shape", "Turns", "depends", "shape_of"]

#: Of a block: what each of its loops does, in order.
Shape = tuple["Turns", ...]
#: Of a loop: how many iterations of which shape, one after the other.
Turns = tuple[tuple[int, Shape], ...]
Array = npt.NDArray[Any]


def depends(block: Block) -> bool:
    """Return whether a value of the run says how often a loop of a block runs, at any depth."""
    return any(_unknown(loop) or depends(loop.body) for loop in block.loops)


def _unknown(loop: Loop) -> bool:
    return loop.kind != "for" or not isinstance(loop.lower, int) or not isinstance(loop.upper, int)


def shape_of(recording: Recording, arrays: Sequence[Array]) -> Shape:
    """Return what the loops of a recording do with these arguments.

    Args:
        recording: of the kernel.
        arrays: contents of the inputs, of NKI's NumPy types; they are not changed.

    Raises:
        NkiError: the run breaks a rule.
    """
    machine = _Watched(recording, [np.array(array, order="C") for array in arrays])
    machine.proceed()
    return machine.shape


class _Watched(Machine):
    """Runs a recording, and remembers the turns of its loops.

    Attributes:
        shape: of the outermost block, after the run.
    """

    def __init__(self, recording: Recording, arrays: Sequence[Array]) -> None:
        super().__init__(recording, arrays)
        self.shape: Shape = ()
        self._blocks: list[list[Turns]] = []
        self._turns: list[list[list[Any]]] = []  # of the loops that run now: [count, shape]

    def _block(self, block: Block) -> None:
        self._blocks.append([])
        super()._block(block)
        shape = tuple(self._blocks.pop())
        if not self._turns:
            self.shape = shape
        elif self._turns[-1] and self._turns[-1][-1][1] == shape:
            self._turns[-1][-1][0] += 1
        else:
            self._turns[-1].append([1, shape])

    def _for(self, loop: Loop) -> None:
        self._turns.append([])
        super()._for(loop)
        self._done()

    def _while(self, loop: Loop) -> None:
        self._turns.append([])
        super()._while(loop)
        self._done()

    def _done(self) -> None:
        found = self._turns.pop()
        self._blocks[-1].append(tuple((count, shape) for count, shape in found))
