"""The machine of the NumPy reference: the memory of a program, laid out as planned.

The scratchpad is one array of bytes, so a plan that lets tensors overlap gives wrong results here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from neuronxcc.codegen.loop import Kernel
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import Array, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators import contraction
from neuronxcc.ir.operators.collectives import alone, collective
from neuronxcc.ir.operators.definition import Exchange
from neuronxcc.program.memory import Buffer, Register, View, as_elements, buffer_bytes

Operands = Sequence[tuple[int, int]]
# Runs an operator: the step, its arguments with arrays for views -> its results.
Aten = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Sequence[Array]]


class Runnable(Protocol):
    """A step."""

    def run(self, machine: Machine) -> None:
        """Do what it does."""


class Machine:
    """A run of one program.

    Attributes:
        program: What is run.
        memory: The elements of every buffer, in the order of memory.
        aten: Runs operators of PyTorch; None: nothing does.
        exchange: How this rank meets the others in collectives.
    """

    def __init__(
        self,
        program: Any,
        args: Sequence[Array],
        aten: Aten | None = None,
        exchange: Exchange = alone,
    ) -> None:
        """Set the memory up; arguments as for `reference.run_program`."""
        self.program = program
        self.aten = aten
        self.exchange = exchange
        # Not zeros: what is read before it is written must not look right by chance.
        self.scratch = np.full(program.scratch_bytes, 0xA5, np.uint8)
        self.memory = [self._memory(buffer, args) for buffer in program.buffers]

    def _memory(self, buffer: Buffer, args: Sequence[Array]) -> Array:
        dtype, nbytes = buffer.dtype.numpy, buffer_bytes(buffer)
        if buffer.kind == "temp":
            return self.scratch[buffer.offset : buffer.offset + nbytes].view(dtype)
        memory = np.full(nbytes, 0xA5, np.uint8).view(dtype)
        if buffer.kind == "output":
            return memory
        if buffer.kind == "input":
            value = np.asarray(args[buffer.index])
        else:
            assert buffer.literal is not None
            value = buffer.literal.array
        if value.dtype != dtype or value.shape != buffer.shape:
            raise TypeError(f"{value.dtype}{list(value.shape)} for {buffer}")
        if value.size:
            strided(memory, buffer.shape, buffer.strides, 0)[...] = value
        return memory

    def run(self) -> list[Array]:
        """Run all steps and return the results."""
        self.steps(self.program.steps)
        results = []
        for number in self.program.results:
            buffer = self.program.buffers[number]
            results.append(strided(self.memory[number], buffer.shape, buffer.strides, 0).copy())
        return results

    def steps(self, steps: Sequence[Runnable]) -> None:
        """Run some steps."""
        for step in steps:
            step.run(self)

    def body(self, body: Any, state: Sequence[Array]) -> list[Array]:
        """Run a program in this one."""
        return type(self)(body, state, self.aten, self.exchange).run()

    def array(self, view: View) -> Array:
        """The elements of a view, in place."""
        memory = self.memory[view.buffer]
        return strided(memory, view.shape, view.strides, view.offset)

    def window(
        self,
        buffer: int,
        dtype: DType,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
    ) -> Array:
        """Some memory as elements of a type, which need not be the buffer's."""
        data = as_elements(self.bytes(buffer), dtype.numpy)
        return strided(data, shape, strides, offset)

    def bytes(self, number: int) -> Array:
        """The bytes of a buffer, in place."""
        return self.memory[number].view(np.uint8)

    def slots(self, operands: Operands) -> list[Array]:
        """The arrays of a kernel's slots."""
        return [self.memory[buffer][offset:] for buffer, offset in operands]

    def kernel(self, kernel: Kernel, operands: Operands, tile: Array | None = None) -> None:
        """Run a loop kernel; a tile is its first slot."""
        run_kernel(kernel, [*(() if tile is None else (tile,)), *self.slots(operands)])

    def store(
        self, sums: Array, out: View | None, kernel: Kernel | None, operands: Operands
    ) -> None:
        """Store sums, or give them to an epilogue."""
        tile = sums.astype(np.float32)
        if kernel is not None:
            self.kernel(kernel, operands, tile.reshape(-1))
        elif out is not None:
            self.array(out)[...] = cast(tile, out.dtype)

    def convolution(
        self,
        x: View,
        w: View,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> Array:
        """The sums of a convolution."""
        given = (parameter(i, TensorType(v.dtype, v.shape)) for i, v in enumerate((x, w)))
        node = build.convolution(
            *given, strides=stride, low=padding, high=padding, rhs_dilation=dilation,
            feature_group_count=groups, dtype=DType.F32,
        )  # fmt: skip
        return contraction.convolution(node, self.array(x), self.array(w))

    def collective(self, op: Op, attrs: Mapping[str, Any], value: Array) -> Array:
        """This rank's result of a collective."""
        return collective(op, attrs, value, self.exchange)

    def register(self, register: int | Register) -> Array:
        """An s32 value, in place."""
        if isinstance(register, int):
            return np.asarray(register)
        data = self.memory[register.buffer].view(np.uint8)
        at = 4 * register.element
        return data[at : at + 4].view(np.int32).reshape(())


def strided(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """Some of the elements of memory, in place."""
    if 0 in shape:
        return np.empty(shape, memory.dtype)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    first = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    if first < 0 or last >= len(memory):
        raise IndexError(f"shape {shape} strides {strides} offset {offset} of {len(memory)}")
    # Not as_strided: NumPy's interface of arrays cannot describe all types of ml_dtypes.
    size = memory.dtype.itemsize
    window: Array = np.ndarray(
        shape, memory.dtype, memory, offset * size, tuple(s * size for s in strides)
    )
    return window
