"""A step that copies a view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import View
from neuronxcc.program.step import Maker, Spec, Step
from neuronxcc.program.words import view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


@dataclass(frozen=True, slots=True)
class CopyStep(Step):
    """out = src, equal shapes and dtypes, any strides."""

    src: View
    out: View

    def check(self, checker: Checker) -> None:
        checker.views((self.src,))
        checker.outs((self.out,))
        if (self.src.dtype, self.src.shape) != (self.out.dtype, self.out.shape):
            raise NeffError("a copy between different types")

    def lines(self, *, kernels: bool) -> Iterator[str]:
        del kernels
        yield f"copy {view_text(self.src)} -> {view_text(self.out)}"

    def run(self, machine: Machine) -> None:
        machine.array(self.out)[...] = machine.array(self.src).copy()

    def spec(self, maker: Maker) -> Spec:
        src, out = maker.view(self.src), maker.view(self.out)
        return {"kind": "copy", "name": "copy", "loc": "", "src": src, "out": out}
