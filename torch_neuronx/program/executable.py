"""A program made ready to run: its kernels compiled, its steps in the native executor.

What the executor is given is plain data (`_C.Program`, built here); it checks every number of it,
since a program may come from a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from neuronxcc.codegen.bounds import Reach, bounded, reaches
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import CompiledModule, compile_kernels
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.streaming import is_large
from neuronxcc.codegen.loop import Kernel, noted
from neuronxcc.ir.calls import CHECKS
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.program.check import check_made
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import buffer_bytes, memory_of, programs
from neuronxcc.program.products import check_epilogue, plain_product
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
    Step,
    View,
    WaitStep,
    WhileStep,
    all_steps,
)
from neuronxcc.program.tape import TapeStep
from torch_neuronx import _C
from torch_neuronx.program.allowed import check_operators
from torch_neuronx.program.dtypes import HELD, TO_TORCH
from torch_neuronx.program.host_steps import check_host_steps
from torch_neuronx.program.tape import Code, codes_of, loop_spec, print_spec, tape_spec

_NEAR: frozenset[int] = frozenset()  # no slot is far
# What steps are called where their operator says nothing to a user.
_CHECKS = dict.fromkeys(CHECKS, "a check of numbers")


class Executable:
    """A loaded program. Thread-safe; calls may run at the same time.

    Attributes:
        program: What it was made of.
        device: Where its results and its working memory lie.
        run: The native entry, for callers that want no Python in between.
        memory: How much memory it needs.
        host_steps: Operators that have no lowering and run on the host, one entry per occurrence.
    """

    _boxed_call = True

    def __init__(
        self,
        program: Program,
        device: torch.device | str,
        known: frozenset[str] = frozenset(),
        *,
        like: Executable | None = None,
    ) -> None:
        """Compile and load.

        Args:
            program: The program; it is not changed.
            device: A neuron device (without an index: the current one) or "cpu".
            known: Operators that it may use besides the harmless ones (see `allowed`).
            like: The same program on another device, whose machine code is used again.

        Raises:
            ValueError: There is no such device.
            NeffError: The program contradicts itself, names memory that is not there, or an
                operator that it may not use or that refuses its arguments.
        """
        assert like is None or like.program is program
        self.program: Program = program
        self.device = _resolve(torch.device(device))
        try:
            self._load(program, known, like)
        except NeffError:
            raise
        except (ValueError, CodegenUnsupported) as error:
            raise NeffError(str(error)) from error
        self.memory = memory_of(program)
        self.host_steps = tuple(_host_steps(program))

    def _load(self, program: Program, known: frozenset[str], like: Executable | None) -> None:
        """Check a program, and get its machine code and the native core's form of it."""
        if like is None:
            check_operators(program, known)
        self._module: CompiledModule | None
        self._compiled: list[Code]
        if like is None:
            self._compiled = codes = list(dict.fromkeys(_codes(program)))
            for kernel, _ in codes:
                reaches(kernel)  # what does not fit together must not reach the code generator
            kernels, far = [kernel for kernel, _ in codes], [slots for _, slots in codes]
            self._module = compile_kernels(kernels, far=far) if codes else None
        else:
            codes = self._compiled = like._compiled
            self._module = like._module
        maker = _SpecMaker(self.device, codes, self._module)
        self.run = _C.Program(maker.program(program), self._module)
        if like is None:
            check_host_steps(program)  # after the native core's checks: fake tensors trust, too

    def __call__(self, args: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Run it.

        Args:
            args: Tensors of the shapes, dtypes and strides that the program was compiled for, on
                its device or the CPU. A list is emptied, so that memory can be given back as soon
                as it is not needed any more; a tuple is left alone.

        Returns:
            The results, in the order of `program.results`.

        Raises:
            ValueError: A tensor is not what the program was compiled for.
        """
        return self.run(args)


def _resolve(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "neuron":
        raise ValueError(f"programs run on neuron devices and on the CPU, not on {device}")
    index: int | None = device.index
    return device if index is not None else torch.device("neuron", _C.current_device())


def _codes(program: Program) -> Iterator[Code]:
    """What has to be compiled."""
    for part in programs(program):
        yield from ((kernel, _NEAR) for kernel in _kernels(part))
        far = _far(part)
        for step in all_steps(part.steps):
            if isinstance(step, TapeStep):
                yield from (code for code in codes_of(step, far) if code is not None)


def _far(program: Program) -> Array:
    """For every buffer whether results are written past the caches to it."""
    host = Host.detect()
    return np.array([
        buffer.kind in {"input", "output"} and is_large(buffer_bytes(buffer), host)
        for buffer in program.buffers
    ], bool)  # fmt: skip


def _kernels(part: Program) -> Iterator[Kernel]:
    """Those of the steps of a program, without tapes and bodies."""
    for step in all_steps(part.steps):
        if isinstance(step, LoopStep):
            yield step.kernel
        elif isinstance(step, GemmStep):
            for operand in (step.a, step.b):
                if isinstance(operand, Made):
                    check_made(operand)  # its machine code has no checks
                    yield operand.kernel
            epilogue = plain_product(step).epilogue
            if epilogue is not None:
                yield epilogue
        elif isinstance(step, ConvStep) and step.epilogue is not None:
            _check_window(step)
            check_epilogue(step.epilogue, step.dims, step.epilogue_operands)
            yield step.epilogue


def _host_steps(program: Program) -> Iterator[str]:
    for part in programs(program):
        for step in all_steps(part.steps):
            if isinstance(step, AtenStep) and step.host:
                yield step.target


class _SpecMaker:
    """The plain data that `_C.Program` is built from."""

    def __init__(
        self, device: torch.device, codes: Sequence[Code], module: CompiledModule | None
    ) -> None:
        self.device = -1 if device.type == "cpu" else device.index
        functions = () if module is None else module.functions
        self.codes = dict(zip(codes, functions, strict=True))
        self.functions = {code[0]: function for code, function in self.codes.items() if not code[1]}
        self.far: Array = np.empty(0, bool)  # of the program in work

    def program(self, program: Program) -> dict[str, object]:
        outer, self.far = self.far, _far(program)
        try:
            return self.parts(program)
        finally:
            self.far = outer

    def parts(self, program: Program) -> dict[str, object]:
        return {
            "name": program.name,
            "device": self.device,
            "scratch_bytes": program.scratch_bytes,
            "buffers": [_buffer(buffer) for buffer in program.buffers],
            "steps": [self.step(step) for step in program.steps],
            "results": program.results,
        }

    def step(self, step: Step) -> dict[str, object]:
        match step:
            case LoopStep():
                function = self.functions[step.kernel]
                return {
                    "kind": "loop",
                    "name": step.kernel.name,
                    "loc": "",
                    "address": function.address,
                    "items": function.items,
                    "grain": function.grain,
                    "scratch_bytes": function.scratch_bytes,
                    "operands": _operands(step.kernel, step.operands, 0),
                    "cleared": _cleared(step.kernel),
                }
            case GemmStep():
                return self.gemm(plain_product(step))
            case ConvStep():
                return self.conv(step)
            case AtenStep():
                return {
                    "kind": "aten",
                    "name": _CHECKS.get(step.target, step.target),
                    "loc": step.loc,
                    "target": step.target,
                    "args": tuple(map(_value, step.args)),
                    "kwargs": {name: _value(value) for name, value in step.kwargs.items()},
                    "outs": tuple(map(_value, step.outs)),
                    "host": step.host,
                    "device": step.device,
                }
            case CopyStep():
                return {
                    "kind": "copy",
                    "name": "copy",
                    "loc": "",
                    "src": _view(step.src),
                    "out": _view(step.out),
                }
            case _:
                return self.control(step)

    def control(
        self,
        step: CallStep | TapeStep | ForStep | WhileStep | PrintStep | CollectiveStep | WaitStep,
    ) -> dict[str, object]:
        match step:
            case TapeStep():
                return tape_spec(step, codes_of(step, self.far), self.codes)
            case ForStep() | WhileStep():
                return loop_spec(step, self.step)
            case PrintStep():
                return print_spec(step, _view(step.view))
            case CollectiveStep():
                return _collective(step)
            case WaitStep():
                return {"kind": "wait", "name": "wait", "loc": step.loc, "start": step.start}
            case CallStep():
                return {
                    "kind": step.kind,
                    "name": step.kind,
                    "loc": "",
                    "bodies": tuple(map(self.program, step.bodies)),
                    "operands": tuple(map(_view, step.operands)),
                    "outs": tuple(map(_view, step.outs)),
                    "selector": _value(step.selector),
                }

    def operand(self, operand: View | Made) -> object:
        """Where an operand of a product lies, or how it is made."""
        if isinstance(operand, View):
            return _view(operand)
        return {
            "address": self.functions[operand.kernel].address,
            "operands": _operands(operand.kernel, operand.operands, 1),
            "dtype": HELD[operand.dtype],
            "shape": operand.shape,
            "by_columns": operand.by_columns,
        }

    def epilogue(
        self, step: GemmStep | ConvStep, name: str, what: str
    ) -> tuple[str, int | None, list[tuple[int, int, int, int, bool]]]:
        """Name of the step, address of its epilogue (None: there is none) and its operands."""
        if step.epilogue is not None:
            operands = _operands(step.epilogue, step.epilogue_operands, 1)
            return f"{name} {step.epilogue.name}", self.functions[step.epilogue].address, operands
        if step.epilogue_operands:
            raise ValueError(f"a {what} without an epilogue has operands for one")
        return name, None, []

    def gemm(self, step: GemmStep) -> dict[str, object]:
        if len(step.a.shape) != 3 or len(step.b.shape) != 3:
            raise ValueError("the operands of a product must have three dimensions")
        batch, m, k = step.a.shape
        name = f"gemm {batch}x{m}x{k}x{step.b.shape[2]} {step.a.dtype.value}"
        name, address, operands = self.epilogue(step, name, "product")
        return {
            "kind": "gemm",
            "name": name,
            "loc": "",
            "a": self.operand(step.a),
            "b": self.operand(step.b),
            "out": _value(step.out),
            "c0": _value(step.c0),
            "epilogue": address,
            "operands": operands,
            "constant_b": step.constant_b,
        }

    def conv(self, step: ConvStep) -> dict[str, object]:
        _check_window(step)
        name, address, operands = self.epilogue(step, step.title, "convolution")
        return {
            "kind": "conv",
            "name": name,
            "loc": step.loc,
            "x": _view(step.x),
            "w": _view(step.w),
            "out": _value(step.out),
            "stride": step.stride,
            "padding": step.padding,
            "dilation": step.dilation,
            "groups": step.groups,
            "epilogue": address,
            "operands": operands,
            "last": step.last,
            "constant_w": step.constant_w,
            "narrow": step.narrow,
        }


def _collective(step: CollectiveStep) -> dict[str, object]:
    nbytes = sum(math.prod(view.shape) * view.dtype.itemsize for view in step.inputs)
    return {
        "kind": "collective",
        "name": f"{step.kind} of {nbytes} bytes in {step.name!r}",
        "loc": step.loc,
        "collective": step.kind,
        "group": step.name,
        "size": len(step.group[0]) if step.group else 0,
        "reduction": step.reduction,
        "root": step.root,
        "send": step.send,
        "receive": step.receive,
        "pairs": step.pairs,
        "inputs": tuple(map(_view, step.inputs)),
        "outs": tuple(map(_view, step.outs)),
    }


def _check_window(step: ConvStep) -> None:
    """What the step's own properties are computed from; the executor checks all numbers again."""
    if len(step.x.shape) != 4 or len(step.w.shape) != 4:
        raise ValueError("the operands of a convolution must have four dimensions")
    for name, values in (
        ("stride", step.stride),
        ("padding", step.padding),
        ("dilation", step.dilation),
    ):
        if len(values) != 2:
            raise ValueError(f"a convolution has the {name} {list(values)}")
    if 0 in step.stride:
        raise ValueError(f"a convolution has the stride {list(step.stride)}")


def _operands(
    kernel: Kernel, operands: tuple[tuple[int, int], ...], first: int
) -> list[tuple[int, int, int, int, bool]]:
    """(buffer, offset, low, high, written) of every slot from `first` on, in bytes."""
    slots = kernel.slots[first:]
    if len(slots) != len(operands):
        raise ValueError(
            f"kernel {kernel.name} has {len(slots)} slots, {len(operands)} operands are given"
        )
    if first == 0 and any(slot.tile for slot in slots):
        raise ValueError(f"kernel {kernel.name} is the epilogue of a product, but is run alone")
    result = []
    found = bounded(kernel)[first:]
    for slot, reach, (buffer, offset) in zip(slots, found, operands, strict=True):
        result.append((buffer, *_in_bytes(slot.dtype.itemsize, offset, reach), reach.written))
    return result


def _cleared(kernel: Kernel) -> list[tuple[int, int, int]]:
    """(Slot, offset, bytes) of what is 0 before the kernel runs; `_operands` has its bounds."""
    result = []
    for access in noted(kernel):
        size = kernel.slots[access.slot].dtype.itemsize
        result.append((access.slot, access.offset * size, size))
    return result


def _in_bytes(size: int, offset: int, reach: Reach) -> tuple[int, int, int]:
    return offset * size, reach.low * size, reach.high * size


def _buffer(
    buffer: Buffer,
) -> tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...], int, int, bytes | None, str]:
    literal = None if buffer.literal is None else buffer.literal.array.tobytes()
    dtype = HELD[buffer.dtype]
    return (
        buffer.kind,
        dtype,
        buffer.shape,
        buffer.strides,
        buffer.index,
        buffer.offset,
        literal,
        buffer.name,
    )


def _view(view: View) -> _C.ProgramView:
    return _C.ProgramView(view.buffer, HELD[view.dtype], view.shape, view.strides, view.offset)


def _value(value: Any) -> Any:
    """An argument of an operator, in PyTorch's terms."""
    if isinstance(value, View):
        return _view(value)
    if isinstance(value, DType):
        if value not in TO_TORCH:
            raise ValueError(f"PyTorch has no dtype for {value!r}")
        return TO_TORCH[value]
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    return value
