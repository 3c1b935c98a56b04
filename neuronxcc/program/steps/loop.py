"""A step that runs a loop kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.spec import cleared, operands_of
from neuronxcc.program.step import NEAR, Code, Maker, Spec, Step
from neuronxcc.program.words import dims_text, kernel_lines, operands_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


@dataclass(frozen=True, slots=True)
class LoopStep(Step):
    """Runs a loop kernel; `operands[i]` is its i-th slot: buffer, offset in elements."""

    kernel: Kernel
    operands: tuple[tuple[int, int], ...]

    def check(self, checker: Checker) -> None:
        checker.operands(self.kernel, self.operands)

    def lines(self, *, kernels: bool) -> Iterator[str]:
        kernel = self.kernel
        yield f"loop {kernel.name} {dims_text(kernel)} ({operands_text(self.operands)})"
        if kernels:
            yield from kernel_lines(kernel)

    def run(self, machine: Machine) -> None:
        machine.kernel(self.kernel, self.operands)

    def codes(self, far: Array) -> Iterator[Code]:
        del far
        yield self.kernel, NEAR

    def spec(self, maker: Maker) -> Spec:
        function = maker.function((self.kernel, NEAR))
        return {
            "kind": "loop",
            "name": self.kernel.name,
            "loc": "",
            "address": function.address,
            "items": function.items,
            "grain": function.grain,
            "scratch_bytes": function.scratch_bytes,
            "operands": operands_of(self.kernel, self.operands, 0),
            "cleared": cleared(self.kernel),
        }

    def summary(self) -> str:
        extents = "x".join(str(dim.extent) for dim in self.kernel.dims) or "1"
        return f"loop {self.kernel.name} over {extents}"
