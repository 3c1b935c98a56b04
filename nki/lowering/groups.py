"""Which instructions may share a lane group.

In a group every thread runs all instructions on its chunks of partitions, so nothing orders one
chunk after another. An instruction joins a group if whatever it writes, and whatever others write
that it touches, meets within one chunk only.

What instructions touch is kept as windows: bytes [low, high) of chunk 0 that move on by the same
advance. As long as a window is no longer than its advance, no chunk of anything in it meets
another chunk of anything else in it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MOST", "Group", "Touch"]

MOST = 512  # instructions: so that a group's windows stay few

# Buffer, bytes [low, high) of chunk 0, how far they move on, whether they are written.
Touch = tuple[int, int, int, int, bool]
_Windows = list[list[int]]  # low, high, advance


class Group:
    """A group being filled.

    Attributes:
        chunks: of partitions, 0 if it is no lane group.
    """

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self._count = 0
        self._read: dict[int, _Windows] = {}
        self._written: dict[int, _Windows] = {}

    def takes(self, touches: Sequence[Touch], chunks: int) -> bool:
        """Return whether an instruction may join."""
        if chunks != self.chunks:
            return False
        if chunks <= 1:
            return True
        if self._count >= MOST:
            return False
        for buffer, low, high, advance, written in touches:
            windows = self._written.get(buffer)
            if windows and self._crosses(windows, low, high, advance):
                return False
            if written:
                windows = self._read.get(buffer)
                if windows and self._crosses(windows, low, high, advance):
                    return False
        return True

    def _crosses(self, windows: _Windows, low: int, high: int, advance: int) -> bool:
        """Return whether bytes may meet those of a window in another chunk."""
        step = abs(advance)
        more = self.chunks - 1
        for first, last, by in reversed(windows):
            if by == advance and high <= first + step and last <= low + step:
                continue
            mine, other = advance * more, by * more
            if low + min(mine, 0) < last + max(other, 0) and first + min(other, 0) < high + max(
                mine, 0
            ):
                return True
        return False

    def add(self, touches: Sequence[Touch]) -> None:
        """Let an instruction join."""
        self._count += 1
        if self.chunks <= 1:
            return
        for buffer, low, high, advance, written in touches:
            known = self._written if written else self._read
            windows = known.get(buffer)
            if windows is None:
                known[buffer] = [[low, high, advance]]
            elif not _joined(windows, low, high, advance):
                windows.append([low, high, advance])


def _joined(windows: _Windows, low: int, high: int, advance: int) -> bool:
    """Widen a window to what it may take; whether one did."""
    step = abs(advance)
    for window in reversed(windows):
        first, last, by = window
        if by == advance and (
            (first <= low and high <= last) or (high <= first + step and last <= low + step)
        ):
            window[0], window[1] = min(first, low), max(last, high)
            return True
    return False
