"""Calls of programs that somebody else lowered, as NKI's kernels are: one step of a program.

In the tensor IR such a call is a CUSTOM_CALL of `TARGET` whose arguments are a list of operands,
with None where the content of an argument is undefined, and a name of the program, a hash of it.
The program may write its arguments; in the IR it is a function, which returns their new contents
after its own results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.neff.codec import encode
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep

__all__ = ["TARGET", "Callee", "body_of", "callee_of", "keep"]

TARGET = "torch_neuronx_nki::run"
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Callee:
    """A program that may be called.

    Attributes:
        program: takes contiguous arguments, and may write to them.
        written: numbers of the arguments that it writes, increasing.
    """

    program: Program
    written: tuple[int, ...]


_CALLEES: dict[str, Callee] = {}


def keep(callee: Callee) -> str:
    """Return the name of what may be called; it stays known to the process."""
    encoded = encode(replace(callee.program, meta={}))  # notes say nothing about what it does
    digest = hashlib.sha256(f"{callee.written}".encode())
    digest.update(encoded.document)
    for content in encoded.contents:
        digest.update(content)
    name = f"{callee.program.name}.{digest.hexdigest()[:40]}"
    _CALLEES[name] = callee
    return name


def callee_of(node: Node) -> Callee | None:
    """Return what a node calls, None for other nodes and for names that nobody keeps."""
    if node.op is not Op.CUSTOM_CALL or node["target"] != TARGET:
        return None
    return _CALLEES.get(node["args"][-1])


def body_of(
    callee: Callee,
    strides: Sequence[tuple[int, ...] | None],
    operands: Sequence[TensorType | None],
    results: Sequence[TensorType | None],
) -> Program:
    """Return a program that does the same and writes no argument.

    Args:
        callee: what is called.
        strides: of the operands that the body is given, in elements. None for an argument that the
            callee writes and whose content before is undefined: the body has no input for it.
        operands: their types, or None likewise.
        results: types of the results, None for those that nobody wants: the program's, then the new
            contents of the arguments that it writes.
    """
    return _Body(callee, strides, operands, results).program


class _Body:
    def __init__(
        self,
        callee: Callee,
        strides: Sequence[tuple[int, ...] | None],
        operands: Sequence[TensorType | None],
        results: Sequence[TensorType | None],
    ) -> None:
        program = callee.program
        self._buffers = list(program.buffers)
        self._scratch = program.scratch_bytes
        inputs = {b.index: n for n, b in enumerate(program.buffers) if b.kind == "input"}
        produced = [*program.results, *(inputs[index] for index in callee.written)]
        types = zip(produced, results, strict=True)
        wanted = {number: type_ for number, type_ in types if type_ is not None}
        copies = []
        given = 0
        for index, (type_, steps) in enumerate(zip(operands, strides, strict=True)):
            number = inputs[index]
            if type_ is None or steps is None:
                continue
            # Memory of the boundary under the type that the caller has for it.
            source = replace(
                self._buffers[number], index=given, dtype=type_.dtype, shape=type_.shape,
                strides=steps,
            )  # fmt: skip
            given += 1
            if number not in produced and steps == self._buffers[number].strides:
                self._buffers[number] = source
                continue
            self._buffers.append(source)
            own = self._buffers[number] = replace(
                self._buffers[number], dtype=type_.dtype, shape=type_.shape
            )
            copies.append(CopyStep(_whole(len(self._buffers) - 1, source), _whole(number, own)))
            if number not in produced:
                self._make_temp(number)
        for place, (number, type_) in enumerate(wanted.items()):
            self._buffers[number] = replace(
                self._buffers[number], kind="output", index=place, offset=-1, dtype=type_.dtype
            )
        for number in produced:
            if number not in wanted:
                self._make_temp(number)
        self.program = Program(
            program.name,
            tuple(self._buffers),
            (*copies, *program.steps),
            tuple(wanted),
            self._scratch,
        )

    def _make_temp(self, number: int) -> None:
        buffer = self._buffers[number]
        offset = self._scratch + -self._scratch % _ALIGNMENT
        self._scratch = offset + TensorType(buffer.dtype, buffer.shape).nbytes
        self._buffers[number] = replace(buffer, kind="temp", index=-1, offset=offset)


def _whole(number: int, buffer: Buffer) -> View:
    return View(number, buffer.dtype, buffer.shape, buffer.strides)
