"""Loops whose indices know which turn of which loop they belong to.

Loops are unrolled by Python, so an index is an integer. Reductions over a loop ask further: whether
two turns of the loop lie in the same turn of all loops around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from nki.arguments import as_range
from nki.context import current_run
from nki.first_generation.state import LoopRun, current, running

__all__ = ["LoopIndex", "LoopRange", "around"]


class LoopIndex(int):
    """An index of a loop.

    Attributes:
        run: the run of the loop that it is of.
    """

    run: LoopRun


class LoopRange(Sequence[int]):
    """The result of ``nl.affine_range(...)``: a range of which the state knows the turns.

    Attributes:
        unrolled: the compiler sees the turns written out and not a loop: ``nl.static_range(...)``.
    """

    __slots__ = ("_range", "unrolled")

    def __init__(self, *args: Any, unrolled: bool = False) -> None:
        self.unrolled = unrolled
        self._range = as_range(args, "a loop")

    def __iter__(self) -> Iterator[int]:
        if not running():
            yield from self._range
            return
        loops = current().loops
        run = LoopRun(tuple([(outer, outer.turn) for outer in loops]))
        recorder = None if self.unrolled else current_run()
        if recorder is not None:
            begin = recorder.position()
            for outer in loops:
                outer.inner = True
        loops.append(run)
        try:
            for number in self._range:
                run.turn += 1
                index = LoopIndex(number)
                index.run = run
                yield index
        finally:
            loops.remove(run)
            if recorder is not None and not run.inner:
                recorder.innermost(begin)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[int]: ...
    def __getitem__(self, key: int | slice) -> int | Sequence[int]:
        """Return an index, or several, as plain integers."""
        return self._range[key]

    def __repr__(self) -> str:
        return repr(self._range)


def around(indices: Sequence[Any]) -> tuple[tuple[LoopRun, int], ...] | None:
    """Return the turns of all loops around the outermost of some; None if none is an index."""
    runs = [index.run for index in indices if isinstance(index, LoopIndex)]
    return min((run.around for run in runs), key=len, default=None)
