"""A program made ready to run: its kernels compiled, its steps in the native executor.

What the executor is given is plain data (`_C.Program`, built here); it checks every number of it,
since a program may come from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from neuronxcc.codegen.bounds import reaches
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import CompiledModule, Function, compile_kernels
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.streaming import is_large
from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import memory_of, programs
from neuronxcc.program.memory import Buffer, View, buffer_bytes
from neuronxcc.program.program import Program, all_steps
from neuronxcc.program.step import Code, Spec
from neuronxcc.program.steps.operator import AtenStep
from torch_neuronx import _C
from torch_neuronx.program.allowed import check_operators
from torch_neuronx.program.dtypes import HELD, TO_TORCH
from torch_neuronx.program.host_steps import check_host_steps

#: Runs a program on a list of its arguments.
Run = Callable[[list[Any]], list[torch.Tensor]]


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
        maker = _Maker(self.device, codes, self._module)
        self.run = _C.Program(maker.program(program), self._module)
        if like is None:
            check_host_steps(program)  # after the native core's checks: fake tensors trust, too

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The loop kernels of its steps, each once."""
        return tuple(kernel for kernel, _ in self._compiled)

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
    """The kernels that have to be compiled."""
    for part in programs(program):
        far = _far(part)
        for step in all_steps(part.steps):
            yield from step.codes(far)


def _far(program: Program) -> Array:
    """For every buffer whether results are written past the caches to it."""
    host = Host.detect()
    return np.array([
        buffer.kind in {"input", "output"} and is_large(buffer_bytes(buffer), host)
        for buffer in program.buffers
    ], bool)  # fmt: skip


def _host_steps(program: Program) -> Iterator[str]:
    for part in programs(program):
        for step in all_steps(part.steps):
            if isinstance(step, AtenStep) and step.host:
                yield step.target


class _Maker:
    """Makes the plain data that `_C.Program` is built from; see `neuronxcc.program.step.Maker`."""

    def __init__(
        self, device: torch.device, codes: Sequence[Code], module: CompiledModule | None
    ) -> None:
        self.device = -1 if device.type == "cpu" else device.index
        functions = () if module is None else module.functions
        self._functions = dict(zip(codes, functions, strict=True))
        self.far: Array = np.empty(0, bool)

    def function(self, code: Code) -> Function:
        return self._functions[code]

    def view(self, view: View) -> _C.ProgramView:
        dtype = HELD[view.dtype]
        return _C.ProgramView(view.buffer, dtype, view.shape, view.strides, view.offset)

    def dtype(self, dtype: DType) -> torch.dtype:
        return HELD[dtype]

    def value(self, value: Any) -> Any:
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, DType):
            if value not in TO_TORCH:
                raise ValueError(f"PyTorch has no dtype for {value!r}")
            return TO_TORCH[value]
        if isinstance(value, tuple | list):
            return tuple(map(self.value, value))
        return value

    def program(self, program: Program) -> Spec:
        outer, self.far = self.far, _far(program)
        try:
            return {
                "name": program.name,
                "device": self.device,
                "scratch_bytes": program.scratch_bytes,
                "buffers": [_buffer(buffer) for buffer in program.buffers],
                "steps": [step.spec(self) for step in program.steps],
                "results": program.results,
            }
        finally:
            self.far = outer


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
