"""How much memory a program needs, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuronxcc.program.memory import buffer_bytes
from neuronxcc.program.program import Program, all_steps


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes that a program uses, the bodies of its loops and branches included where they differ.

    Attributes:
        inputs: Of the arguments.
        outputs: Of the results that are allocated by a call.
        constants: Held as long as the program is loaded.
        scratch: Of the scratchpad, allocated by every call.
    """

    inputs: int
    outputs: int
    constants: int
    scratch: int


def programs(program: Program) -> Iterator[Program]:
    """The program and all bodies in it."""
    yield program
    for step in all_steps(program.steps):
        for body in step.programs():
            yield from programs(body)


def memory_of(program: Program) -> MemoryFacts:
    """The memory that a program needs."""

    def total(kind: str, parts: Sequence[Program]) -> int:
        return sum(buffer_bytes(b) for p in parts for b in p.buffers if b.kind == kind)

    everything = tuple(programs(program))
    scratch = sum(part.scratch_bytes for part in everything)
    return MemoryFacts(
        total("input", (program,)),
        total("output", (program,)),
        total("constant", everything),
        scratch,
    )
