"""Which instructions may share a lane group.

In a group every thread runs all instructions on its chunks of partitions, so nothing orders one
chunk after another. An instruction joins a group if whatever it writes, and whatever others write
that it touches, meets within one chunk only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["MOST", "Group", "Touch"]

MOST = 128  # instructions: what one writes is compared with all others of its group


class Touch(NamedTuple):
    """What an instruction touches of a buffer: bytes [low, high) for chunk 0, then moved on."""

    buffer: int
    low: int
    high: int
    advance: int
    written: bool


def crosses(a: Touch, b: Touch, chunks: int) -> bool:
    """Whether `a` in one chunk may meet `b` in another one."""
    if chunks == 1:
        return False
    step = abs(a.advance)
    if a.advance == b.advance and a.high <= b.low + step and b.high <= a.low + step:
        return False
    a_low, a_high = _all(a, chunks)
    b_low, b_high = _all(b, chunks)
    return a_low < b_high and b_low < a_high


def _all(touch: Touch, chunks: int) -> tuple[int, int]:
    moved = touch.advance * (chunks - 1)
    return touch.low + min(moved, 0), touch.high + max(moved, 0)


@dataclass
class Group:
    """A group being filled."""

    chunks: int
    count: int = 0
    # By buffer.
    _read: dict[int, dict[Touch, None]] = field(default_factory=dict)
    _written: dict[int, dict[Touch, None]] = field(default_factory=dict)

    def takes(self, touches: Sequence[Touch], chunks: int) -> bool:
        """Whether an instruction may join."""
        if chunks != self.chunks:
            return False
        if chunks == 0:
            return True
        if self.count >= MOST:
            return False
        for touch in touches:
            for other in self._written.get(touch.buffer, ()):
                if crosses(touch, other, chunks):
                    return False
            if touch.written:
                for other in self._read.get(touch.buffer, ()):
                    if crosses(touch, other, chunks):
                        return False
        return True

    def add(self, touches: Sequence[Touch]) -> None:
        """Let an instruction join."""
        self.count += 1
        for touch in touches:
            known = self._written if touch.written else self._read
            known.setdefault(touch.buffer, {})[touch] = None
