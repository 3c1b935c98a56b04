"""Copies and sums that happen at once, as instructions one after the other.

An exchange is a list of assignments whose sources all hold what they held before. Where a
destination overlaps what a later assignment reads, the value goes through a temporary tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nki.access import overlap
from nki.isa.table import HIDDEN, TABLE
from nki.merging.writer import Writer
from nki.recording import Block
from nki.tensor import NkiTensor

__all__ = ["Assignment", "Exchange"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One destination and where its value comes from.

    Attributes:
        dst: what is written.
        srcs: one tensor to copy, or several to fold from the first to the last.
        core: the participant that receives.
        line: number of its user's line.
        op: how several are folded: "add", "minimum" or "maximum"; "" for a copy.
    """

    dst: NkiTensor
    srcs: tuple[NkiTensor, ...]
    core: int
    line: int
    op: str = ""


class Exchange:
    """Writes exchanges into a block of a merged recording."""

    def __init__(self, writer: Writer, block: Block) -> None:
        self._writer = writer
        self._block = block

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Append assignments that happen at once."""
        late: list[Assignment] = []
        for i, assignment in enumerate(assignments):
            target = assignment.dst
            if _spoils(assignment, assignments[i + 1 :]):
                target = self._writer.temporary(assignment.dst)
                back = Assignment(assignment.dst, (target,), assignment.core, assignment.line)
                late.append(back)
            if assignment.op:
                self.emit(
                    "combine",
                    {"dst": target, "srcs": list(assignment.srcs)},
                    {"op": assignment.op},
                    assignment,
                )
            else:
                self.emit("dma_copy", {"dst": target, "src": assignment.srcs[0]}, {}, assignment)
        for back in late:
            self.emit("dma_copy", {"dst": back.dst, "src": back.srcs[0]}, {}, back)

    def snapshot(self, tensor: NkiTensor, core: int, line: int) -> NkiTensor:
        """Append a copy of a tensor to a temporary one, and return that."""
        target = self._writer.temporary(tensor)
        self.assign([Assignment(target, (tensor,), core, line)])
        return target

    def emit(
        self, name: str, operands: dict[str, Any], attributes: dict[str, Any], who: Assignment
    ) -> None:
        """Append an instruction that a participant did not ask for by this name."""
        row = HIDDEN[name] if name in HIDDEN else TABLE[name]
        self._writer.emit(self._block, row, operands, attributes, who.line, who.core)


def _spoils(assignment: Assignment, later: Sequence[Assignment]) -> bool:
    """Return whether writing the destination at once changes what is still to be read."""
    dst = assignment.dst
    own = any(overlap(dst, src) and dst.pattern != src.pattern for src in assignment.srcs)
    return own or any(overlap(dst, src) for other in later for src in other.srcs)
