"""A program with its weights in it, as a NEFF for other tools wants it."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronxcc.ir.node import Literal
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from torch_neuronx.inference.capture import Captured
from torch_neuronx.program.dtypes import to_numpy


def with_weights(program: Program, captured: Captured) -> Program:
    """The program with constants for its weights; states and inputs stay its arguments, in order.

    Args:
        program: As compiled: all of them are arguments.
        captured: What the arguments are.
    """
    values: dict[int, torch.Tensor] = {}
    numbers: dict[int, int] = {}
    for argument, place in enumerate(captured.imported.arguments):
        assert isinstance(place, int)
        if place < len(captured.weights):
            values[argument] = captured.weights[place].value
        else:
            numbers[argument] = len(numbers)

    def changed(buffer: Buffer) -> Buffer:
        if buffer.kind != "input":
            return buffer
        if buffer.index in values:
            literal = Literal(to_numpy(values[buffer.index]))
            return replace(buffer, kind="constant", index=-1, literal=literal)
        return replace(buffer, index=numbers[buffer.index])

    return replace(program, buffers=tuple(map(changed, program.buffers)))
