"""The check of a whole program: ids exist, types agree, and all memory that is named is there.

A program may come from a file that anyone wrote, and its execution works on raw addresses. So
everything that can be decided without running it is decided here, by its buffers and its steps.
"""

from __future__ import annotations

from neuronxcc.codegen.check import MOST_BYTES, extents_size, span
from neuronxcc.program.checker import Checker
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program, all_steps
from neuronxcc.program.steps.collective import check_waits

_KINDS = ("input", "output", "temp", "constant")


def check_program(program: Program) -> None:
    """Check a program and the bodies it calls.

    Raises:
        NeffError: Names the program, the buffer or step, and what is wrong with it.
    """
    _check(program, Checker(), set())


def _check(program: Program, checker: Checker, known: set[Program]) -> None:
    """Check a program that is not one of the known ones."""
    if program in known:
        return
    for step in all_steps(program.steps):
        for body in step.programs():
            _check(body, checker, known)
    where = "the results"
    try:
        _check_numbers(program)
        sizes = []
        for number, buffer in enumerate(program.buffers):
            where = f"buffer {number}"
            sizes.append(_check_buffer(buffer, program))
        checker.enter(program.buffers, sizes)
        for number, step in enumerate(program.steps):
            where = f"step {number} ({type(step).__name__})"
            step.check(checker)
        where = "its collectives"
        check_waits(program.steps)
    except NeffError as error:
        raise NeffError(f"program {program.name!r}, {where}: {error}") from None
    known.add(program)


def _check_buffer(buffer: Buffer, program: Program) -> int:
    """Check one buffer and return the bytes from its first to its last element."""
    if buffer.kind not in _KINDS:
        raise NeffError(f"unknown kind {buffer.kind!r}")
    if len(buffer.shape) != len(buffer.strides):
        raise NeffError(f"{len(buffer.shape)} extents but {len(buffer.strides)} strides")
    size = extents_size(buffer.shape)
    if any(stride < 0 for stride in buffer.strides):
        raise NeffError(f"negative stride in {list(buffer.strides)}")
    last = span(buffer.shape, buffer.strides, 0)[1] + 1 if size else 0
    nbytes = last * buffer.dtype.itemsize
    if nbytes > MOST_BYTES:
        raise NeffError(f"{nbytes} bytes are more than any memory has")
    if (buffer.kind == "constant") != (buffer.literal is not None):
        raise NeffError("constants, and nothing else, have a literal")
    if buffer.literal is not None:
        kind = buffer.literal.type
        if (kind.dtype, kind.shape) != (buffer.dtype, buffer.shape) or last != size:
            raise NeffError(f"its literal is {kind}")
    if buffer.kind == "temp" and not 0 <= buffer.offset <= program.scratch_bytes - nbytes:
        raise NeffError(
            f"{nbytes} bytes at {buffer.offset} are not in the scratchpad of "
            f"{program.scratch_bytes}"
        )
    if buffer.kind in {"input", "output"} and buffer.index < 0:
        raise NeffError(f"{buffer.kind} number {buffer.index}")
    return nbytes


def _check_numbers(program: Program) -> None:
    """Check the scratchpad, and that inputs, outputs and results have numbers that fit."""
    if not 0 <= program.scratch_bytes <= MOST_BYTES:
        raise NeffError(f"a scratchpad of {program.scratch_bytes} bytes")
    for kind in ("input", "output"):
        numbers = [buffer.index for buffer in program.buffers if buffer.kind == kind]
        if len(set(numbers)) != len(numbers):
            raise NeffError(f"two {kind}s of one number")
    for number in program.results:
        if not 0 <= number < len(program.buffers):
            raise NeffError(f"buffer {number} of {len(program.buffers)}")
        if program.buffers[number].kind not in {"input", "output"}:
            raise NeffError(f"buffer {number}, a {program.buffers[number].kind}, is no result")
    if any(b.kind == "output" and b.index >= len(program.results) for b in program.buffers):
        raise NeffError("an output beyond the number of results")
