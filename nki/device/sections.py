"""Sections: what runs as one kernel, with its recording or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronxcc.ir.graph import Loc
from neuronxcc.ir.node import Node
from nki.checks.flow import starts
from nki.recording import Block, Recording

__all__ = ["Section", "count"]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """What runs as one kernel.

    Attributes:
        nodes: what it computes, operands first.
        kind: the family of kernels that does it.
        inputs: nodes whose tensors it reads, in the order of the recording's arguments.
        outputs: nodes whose tensors it writes, in the order of the recording's results.
        recording: its instructions, None where there are none.
        reason: why there are none, "" where there are some.
        code: the documented code of the compiler for that, "" where there is none.
        operator: the first operator, which names the section.
        locs: where the user wrote the nodes, as far as that is known.
        instructions: how many run.
        once: when the program is loaded, and not whenever it runs.
    """

    nodes: tuple[Node, ...]
    kind: str
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    recording: Recording | None
    reason: str = ""
    code: str = ""
    locs: Mapping[Node, Loc] = field(default_factory=dict)
    instructions: int = 0
    once: bool = False

    @property
    def operator(self) -> str:
        """The operator that most of the work is done for."""
        return self.nodes[0].op.value

    @property
    def loc(self) -> Loc | None:
        """Where the user wrote the first node that is known of."""
        return next((self.locs[node] for node in self.nodes if node in self.locs), None)


def count(recording: Recording) -> int:
    """Return how many instructions a recording runs, those in loops as often as they do."""
    words = [template.words for template in recording.templates]
    return _count(recording.body, words)


def _count(block: Block, words: list[int]) -> int:
    at = starts(block.code, words)
    total = len(at) - len(block.loops)
    for loop in block.loops:
        times = 1
        if isinstance(loop.lower, int) and isinstance(loop.upper, int):
            times = len(range(loop.lower, loop.upper, loop.step))
        total += times * _count(loop.body, words)
    return total
