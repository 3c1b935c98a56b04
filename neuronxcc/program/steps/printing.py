"""A step that prints a view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.memory import View
from neuronxcc.program.step import Maker, Spec, Step
from neuronxcc.program.words import place, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


@dataclass(frozen=True, slots=True)
class PrintStep(Step):
    """Prints a prefix and the values of a view as a NumPy array, by Python's print.

    Attributes:
        prefix: A separate argument of print, also if it is empty.
        view: What is printed.
        location: The user's line.
    """

    prefix: str
    view: View
    location: str = ""

    def check(self, checker: Checker) -> None:
        checker.views((self.view,))

    def lines(self, *, kernels: bool) -> Iterator[str]:
        del kernels
        yield f"print {self.prefix!r} {view_text(self.view)}{place(self.location)}"

    def run(self, machine: Machine) -> None:
        view = self.view
        self._print(machine.window(view.buffer, view.dtype, view.shape, view.strides, view.offset))

    def spec(self, maker: Maker) -> Spec:
        shape, dtype = self.view.shape, self.view.dtype.numpy

        def show(data: bytes) -> None:
            self._print(np.ndarray(shape, dtype, data))

        return {
            "kind": "print",
            "name": f"print {self.prefix}",
            "loc": self.location,
            "view": maker.view(self.view),
            "printer": show,
        }

    def _print(self, values: Array) -> None:
        print(self.prefix, values)  # noqa: T201 - the user asked for it
