"""The base of all steps: each has its check, its text, its meaning in NumPy, and its machine code.

A step is one class in `steps`, or in `program` if it holds steps or programs of its own. Whoever
wants something of all steps asks each, so there is no list of their kinds but the type `AnyStep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.memory import View

if TYPE_CHECKING:  # each needs more of the compiler than those who load a program import
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine

Spec = dict[str, object]

# A kernel, and its slots that are written piece by piece to something larger than the cache.
Code = tuple[Kernel, frozenset[int]]
NEAR: frozenset[int] = frozenset()  # no slot is


class Function(Protocol):
    """The machine code of a kernel."""

    @property
    def address(self) -> int:
        """Where it begins."""

    @property
    def items(self) -> int:
        """Into how many pieces a call can be split."""

    @property
    def grain(self) -> int:
        """The least number of pieces that is worth a thread."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that each thread needs."""


class Maker(Protocol):
    """Makes the plain data that the native executor is built from, in its caller's types.

    Attributes:
        far: For every buffer of the program in work, whether results are written past the caches.
    """

    far: Array

    def function(self, code: Code) -> Function:
        """The machine code of a kernel that a step named in `codes`."""

    def view(self, view: View) -> object:
        """A view."""

    def value(self, value: Any) -> Any:
        """An argument of an operator, or an operand that may be absent."""

    def dtype(self, dtype: DType) -> object:
        """A type, as memory of it is held."""

    def program(self, program: Any) -> Spec:
        """A body."""


class Step:
    """A step of a program: a frozen dataclass, whose fields a NEFF holds in order."""

    __slots__ = ()

    def check(self, checker: Checker) -> None:
        """Check that everything is there that the step names, and that it fits together.

        Raises:
            NeffError: What is wrong.
        """
        raise NotImplementedError

    def lines(self, *, kernels: bool) -> Iterator[str]:
        """The step as text; with `kernels` what its loop kernels compute, too."""
        raise NotImplementedError

    def run(self, machine: Machine) -> None:
        """Do what the step does, in NumPy."""
        raise NotImplementedError

    def spec(self, maker: Maker) -> Spec:
        """The step for the native executor.

        Raises:
            ValueError: It contradicts itself, or cannot be bounded.
        """
        raise NotImplementedError

    def codes(self, far: Array) -> Iterator[Code]:
        """The kernels that have to be compiled; `far` as in `Maker`.

        Raises:
            ValueError: Machine code of it could not be called safely.
        """
        del far
        return iter(())

    def inner(self) -> tuple[Any, ...]:
        """Steps that it runs on the same memory."""
        return ()

    def programs(self) -> tuple[Any, ...]:
        """Programs that it runs on memory of their own."""
        return ()

    def summary(self) -> str:
        """One line for reports; "" if there is nothing to report."""
        return ""
