"""Small programs for the tests of the executor, and their meaning in PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.ir.op import Op
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import AnyStep, CallStep, Program
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from torch_neuronx.program.executable import Executable

DEVICES = ["cpu", "neuron"]
Shape = tuple[int, ...]


def contiguous(shape: Shape) -> Shape:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def operators(program: Program) -> frozenset[str]:
    """What the program's steps name, bodies included."""
    found = {step.target for step in program.steps if isinstance(step, AtenStep)}
    bodies = (b for step in program.steps if isinstance(step, CallStep) for b in step.bodies)
    return frozenset(found).union(*map(operators, bodies))


def trusted(program: Program, device: torch.device | str) -> Executable:
    """The program loaded as if a graph of this process called all its operators."""
    return Executable(program, device, operators(program))


class Maker:
    """Collects buffers and steps; numbers arguments, results and places in the scratchpad."""

    def __init__(self, name: str = "test") -> None:
        self.name = name
        self.buffers: list[Buffer] = []
        self.steps: list[AnyStep] = []
        self.scratch = 0

    def buffer(
        self,
        kind: str,
        shape: Shape,
        dtype: DType = DType.F32,
        strides: Shape | None = None,
        literal: np.ndarray | None = None,
    ) -> int:
        strides = contiguous(shape) if strides is None else strides
        index, offset = -1, -1
        if kind == "temp":
            offset = self.scratch
            reach = sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True)) + 1
            self.scratch += (reach * dtype.itemsize + 63) // 64 * 64
        elif kind != "constant":
            index = sum(b.kind == kind for b in self.buffers)
        value = None if literal is None else Literal(literal)
        self.buffers.append(Buffer(kind, dtype, shape, strides, index, offset, value))
        return len(self.buffers) - 1

    def view(self, number: int) -> View:
        b = self.buffers[number]
        return View(number, b.dtype, b.shape, b.strides)

    def matrix(self, number: int) -> View:
        """The view of rank 3 that a GEMM takes of a matrix or a batch of them."""
        b = self.buffers[number]
        lead = (1,) * (3 - len(b.shape))
        return View(number, b.dtype, lead + b.shape, (0,) * len(lead) + b.strides)

    def program(self, *results: int) -> Program:
        outputs = [n for n, b in enumerate(self.buffers) if b.kind == "output"]
        return Program(
            self.name,
            tuple(self.buffers),
            tuple(self.steps),
            tuple(results) if results else tuple(outputs),
            self.scratch,
        )


def elementwise(op: Op, shape: Shape, dtype: DType = DType.F32, arity: int = 2) -> Kernel:
    """Slots 0 .. arity - 1 in, the last one out, all contiguous."""
    strides = contiguous(shape)
    loads = [build.load(dtype, slot, strides) for slot in range(arity)]
    store = Store(Access(arity, strides), build.op(op, *loads))
    dims = tuple(Dim(extent) for extent in shape)
    return Kernel(op.value, dims, (Slot(dtype),) * (arity + 1), (store,))


def apply(maker: Maker, op: Op, *buffers: int) -> None:
    """Adds the step that computes the last buffer from the others."""
    b = maker.buffers[buffers[-1]]
    kernel = elementwise(op, b.shape, b.dtype, len(buffers) - 1)
    maker.steps.append(LoopStep(kernel, tuple((number, 0) for number in buffers)))


def adder(shape: Shape = (16,)) -> Program:
    """A program of one step, x + y."""
    maker = Maker("adder")
    x, y, out = (maker.buffer(kind, shape) for kind in ("input", "input", "output"))
    apply(maker, Op.ADD, x, y, out)
    return maker.program()


def random(shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """Numbers in [-1, 1), or small integers."""
    if dtype.is_floating_point:
        return (torch.rand(shape) * 2 - 1).to(dtype).to(device)
    return torch.randint(0, 100, shape).to(dtype).to(device)
