"""Runs a program in NumPy: every step by its obvious meaning, memory where the plan has it.

The scratchpad is one array of bytes, so a plan that lets tensors overlap gives wrong results here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronxcc.codegen.loop import Kernel
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.meaning.collectives import Exchange, alone, collective
from neuronxcc.ir.meaning.contraction import convolution
from neuronxcc.ir.meaning.elementwise import Array, cast, precise
from neuronxcc.ir.node import TensorType
from neuronxcc.lowering.layout import span
from neuronxcc.program.collective_check import attributes, operator_of
from neuronxcc.program.program import (
    AtenStep,
    Buffer,
    CallStep,
    CollectiveStep,
    ConvStep,
    CopyStep,
    ForStep,
    GemmStep,
    LoopStep,
    Made,
    PrintStep,
    Program,
    Register,
    Step,
    View,
    WaitStep,
    WhileStep,
)
from neuronxcc.program.tape import TapeStep
from neuronxcc.program.tape_reference import as_elements, print_values, run_tape

# Runs an operator: the step, its arguments with arrays for views -> its results.
Aten = Callable[[AtenStep, tuple[Any, ...], Mapping[str, Any]], Sequence[Array]]


def run_program(
    program: Program,
    args: Sequence[Array],
    aten: Aten | None = None,
    exchange: Exchange = alone,
) -> list[Array]:
    """Return the results of a program.

    Args:
        program: To run.
        args: One array per input, of its type and shape; not written to.
        aten: Runs operators of PyTorch.
        exchange: How this rank meets the others in collectives.

    Raises:
        NotImplementedError: there is an AtenStep, and no `aten` to run it.
    """
    with np.errstate(all="ignore"):  # infinities and NaN are values
        return _Run(program, args, aten, exchange).run()


class _Run:
    def __init__(
        self, program: Program, args: Sequence[Array], aten: Aten | None, exchange: Exchange
    ) -> None:
        self.program = program
        self.aten = aten
        self.exchange = exchange
        # Not zeros: what is read before it is written must not look right by chance.
        self.scratch = np.full(program.scratch_bytes, 0xA5, np.uint8)
        self.memory = [self._memory(buffer, args) for buffer in program.buffers]

    def _memory(self, buffer: Buffer, args: Sequence[Array]) -> Array:
        dtype, count = buffer.dtype.numpy, span(buffer.shape, buffer.strides)
        if buffer.kind == "temp":
            nbytes = count * dtype.itemsize
            return self.scratch[buffer.offset : buffer.offset + nbytes].view(dtype)
        memory = np.full(count * dtype.itemsize, 0xA5, np.uint8).view(dtype)
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
            _strided(memory, buffer.shape, buffer.strides, 0)[...] = value
        return memory

    def run(self) -> list[Array]:
        """All steps."""
        self.steps(self.program.steps)
        results = []
        for number in self.program.results:
            buffer = self.program.buffers[number]
            results.append(_strided(self.memory[number], buffer.shape, buffer.strides, 0).copy())
        return results

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            _STEPS[type(step)](self, step)

    def array(self, view: View) -> Array:
        """The elements of a view, in place."""
        memory = self.memory[view.buffer]
        return _strided(memory, view.shape, view.strides, view.offset)

    def _slots(self, operands: Sequence[tuple[int, int]]) -> list[Array]:
        return [self.memory[buffer][offset:] for buffer, offset in operands]

    def loop(self, step: LoopStep) -> None:
        run_kernel(step.kernel, self._slots(step.operands))

    def operand(self, operand: View | Made) -> Array:
        """An operand of a product."""
        if isinstance(operand, View):
            return self.array(operand)
        batch, rows, columns = operand.shape
        shape = (batch, columns, rows) if operand.by_columns else operand.shape
        tile = np.empty(math.prod(shape), operand.dtype.numpy)
        run_kernel(operand.kernel, [tile, *self._slots(operand.operands)])
        made = tile.reshape(shape)
        return made.swapaxes(1, 2) if operand.by_columns else made

    def gemm(self, step: GemmStep) -> None:
        a, b = (precise(self.operand(operand)) for operand in (step.a, step.b))
        sums = np.matmul(a, b)
        if step.c0 is not None:
            sums = sums + precise(self.array(step.c0))
        self._finish(sums, step.out, step.epilogue, step.epilogue_operands)

    def _finish(
        self,
        sums: Array,
        out: View | None,
        epilogue: Kernel | None,
        operands: tuple[tuple[int, int], ...],
    ) -> None:
        """Store sums, or give them to an epilogue."""
        tile = sums.astype(np.float32)
        if epilogue is None:
            assert out is not None
            self.array(out)[...] = cast(tile, out.dtype)
        else:
            run_kernel(epilogue, [tile.reshape(-1), *self._slots(operands)])

    def convolve(self, step: ConvStep) -> None:
        x, w = (parameter(i, TensorType(v.dtype, v.shape)) for i, v in enumerate((step.x, step.w)))
        node = build.convolution(
            x, w, strides=step.stride, low=step.padding, high=step.padding,
            rhs_dilation=step.dilation, feature_group_count=step.groups, dtype=DType.F32,
        )  # fmt: skip
        sums = convolution(node, self.array(step.x), self.array(step.w))
        if step.epilogue is not None and step.last:
            sums = sums.transpose(0, 2, 3, 1)
        self._finish(sums, step.out, step.epilogue, step.epilogue_operands)

    def call_aten(self, step: AtenStep) -> None:
        if self.aten is None:
            raise NotImplementedError(f"{step.target}; pass `aten` to run it")

        def filled(value: Any) -> Any:
            if isinstance(value, View):
                return self.array(value).copy()
            return tuple(map(filled, value)) if isinstance(value, tuple) else value

        kwargs = {name: filled(value) for name, value in step.kwargs.items()}
        results = self.aten(step, filled(step.args), kwargs)
        for out, result in zip(step.outs, results, strict=True):
            if out is not None:
                self.array(out)[...] = result

    def copy(self, step: CopyStep) -> None:
        self.array(step.out)[...] = self.array(step.src).copy()

    def call(self, step: CallStep) -> None:
        state = [self.array(view).copy() for view in step.operands]
        if step.kind == "while":
            cond, body = step.bodies
            while self.body(cond, state)[0]:
                state = self.body(body, state)
        else:
            state = self.body(step.bodies[self._chosen(step)], state)
        for out, value in zip(step.outs, state, strict=True):
            if out is not None:
                self.array(out)[...] = value

    def body(self, body: Program, state: Sequence[Array]) -> list[Array]:
        """Run a program in this one."""
        return run_program(body, state, self.aten, self.exchange)

    def start(self, step: CollectiveStep) -> None:
        """Spoil the outs: what reads them before the wait must not look right by chance."""
        inputs = {(view.buffer, view.offset) for view in step.inputs}
        for out in step.outs:
            if (out.buffer, out.offset) not in inputs:
                self.array(out)[...] = np.full((), 0xA5, np.uint8).astype(out.dtype.numpy)

    def wait(self, step: WaitStep) -> None:
        """Do the collective only now, of what the inputs hold now."""
        start = self.program.steps[step.start]
        assert isinstance(start, CollectiveStep)
        op, attrs = operator_of(start), attributes(start)
        for view, out in zip(start.inputs, start.outs, strict=True):
            value = collective(op, attrs, self.array(view).copy(), self.exchange)
            self.array(out)[...] = value

    def _chosen(self, step: CallStep) -> int:
        if step.selector is None:
            return 0
        value = self.array(step.selector)[()]
        if value.dtype == np.bool_:
            return int(not value)
        last = len(step.bodies) - 1
        return int(value) if 0 <= value <= last else last

    def tape(self, step: TapeStep) -> None:
        run_tape(step, [memory.view(np.uint8) for memory in self.memory])

    def register(self, register: int | Register) -> Array:
        """An s32 value, in place."""
        if isinstance(register, int):
            return np.asarray(register)
        data = self.memory[register.buffer].view(np.uint8)
        at = 4 * register.element
        return data[at : at + 4].view(np.int32).reshape(())

    def set_counters(self, step: ForStep | WhileStep, value: int) -> None:
        for counter in step.counters:
            self.register(counter)[...] = value

    def repeat(self, step: ForStep) -> None:
        for value in range(
            int(self.register(step.lower)), int(self.register(step.upper)), step.step
        ):
            self.set_counters(step, value)
            self.steps(step.body)

    def repeat_while(self, step: WhileStep) -> None:
        value = int(self.register(step.initial))
        self.set_counters(step, value)
        while value:
            self.steps(step.body)
            value = int(self.register(step.next))
            self.set_counters(step, value)

    def show(self, step: PrintStep) -> None:
        view = step.view
        data = as_elements(self.memory[view.buffer].view(np.uint8), view.dtype.numpy)
        print_values(step.prefix, _strided(data, view.shape, view.strides, view.offset))


_STEPS: dict[type[Step], Callable[[_Run, Any], None]] = {
    LoopStep: _Run.loop,
    GemmStep: _Run.gemm,
    ConvStep: _Run.convolve,
    AtenStep: _Run.call_aten,
    CopyStep: _Run.copy,
    CallStep: _Run.call,
    TapeStep: _Run.tape,
    ForStep: _Run.repeat,
    WhileStep: _Run.repeat_while,
    PrintStep: _Run.show,
    CollectiveStep: _Run.start,
    WaitStep: _Run.wait,
}


def _strided(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
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
