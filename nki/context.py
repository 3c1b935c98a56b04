"""The core and the recorder of the current thread's kernel."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from nki.core import Core, default_target
from nki.errors import NkiError

__all__ = [
    "Issuer",
    "KernelRun",
    "Surroundings",
    "current_core",
    "current_run",
    "surroundings",
    "use",
]


class KernelRun(Protocol):
    """A kernel that runs, as its own code sees it: what tensors and `nki.language` ask of it.

    Tensors and registers are below this and above it at once: they ask, and they are what is asked
    about. So they have no types here.

    Attributes:
        made: by shape, data type and buffer as they were given that shape and the first tensor, for
            others like it.
        depth: number of nested loops of the device that are open.
        where: file and line that instructions are taken to be at; None for those of the caller.
    """

    made: dict[Any, Any]
    depth: int
    where: tuple[str, int] | None

    # --- making tensors --------------------------------------------------------------------------

    def created(self, tensor: Any) -> None:
        """Take note of a tensor with a storage of its own."""

    def constant(self, storage: Any) -> None:
        """Take note of a storage that holds data from the start."""

    def stored(self, dtype: str) -> str:
        """Return the type that tensors of a type are stored as."""

    def fill(self, tensor: Any, value: float) -> None:
        """Record that every element of ``tensor`` becomes ``value``, which its type can hold."""

    def copy(self, dst: Any, src: Any) -> None:
        """Record that ``dst`` becomes ``src``, of the same shape and data type."""

    def assign(self, dst: Any, value: Any) -> bool:
        """Record ``dst[...] = value``; False if ``value`` is nothing that can be assigned."""

    # --- looking at values -----------------------------------------------------------------------

    def peek(self, tensor: Any) -> npt.NDArray[Any]:
        """Return what a tensor holds now."""

    def decide(self, register: Any) -> bool | None:
        """Answer whether a register is true, None if what asks is no ``while`` of Python."""

    def compute(self, op: str, a: Any, b: Any) -> Any:
        """Record arithmetic of two registers, or of one and an integer; return the result."""

    def device_print(self, prefix: str, tensor: Any) -> None:
        """Record that a tensor is printed."""

    # --- control flow ----------------------------------------------------------------------------

    def for_loop(self, lower: Any, upper: Any, step: Any = 1) -> AbstractContextManager[Any]:
        """Record a loop that the device counts; the context is its counter."""

    def while_loop(self, initial: Any) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """Record a loop that runs while a register is not 0; see `nki.recorder`."""

    def program_ndim(self) -> int:
        """Return the number of axes of the launch grid."""

    def num_programs(self, axes: Any = None) -> int:
        """Return the number of programs along some axes, by default along all."""

    def program_id(self, axis: int = 0) -> int:
        """Return the number of this program along an axis."""

    # --- loops that Python runs ------------------------------------------------------------------

    def position(self) -> int:
        """Return where the next instruction will be in the code of the outermost block."""

    def innermost(self, begin: int) -> None:
        """Take note of a loop without others in it, whose code began at a position."""

    # --- what goes wrong -------------------------------------------------------------------------

    def finding(self, code: str, text: str, where: tuple[str, int] | None = None) -> None:
        """Take note of something that works here and is undefined on hardware."""

    def fail(self, error: NkiError) -> None:
        """Raise an error when the kernel has ended: it was found where Python lets none pass."""


class Issuer(NamedTuple):
    """Who receives the calls of `nki.isa`.

    Attributes:
        issue: is given the row of the table, operands as the user gave them and canonical
            attributes, both by name; what it returns is what the kernel gets. `nki.isa.bind`
            checks the call.
        again: is asked before, with the row, the positional and the named arguments: it returns an
            `NkiInstruction` if it has dealt with the call, else a key of it or None.
        learn: is told of the calls with a key that `issue` took: the key, the arguments as they
            were given, and what `issue` was given.
    """

    issue: Callable[[Any, dict[str, Any], dict[str, Any]], Any]
    again: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
    learn: (
        Callable[
            [Any, tuple[tuple[Any, ...], dict[str, Any]], Any, dict[str, Any], dict[str, Any]], None
        ]
        | None
    ) = None


class Surroundings(NamedTuple):
    """The surroundings of the code of a thread.

    Attributes:
        core: what it runs on.
        run: the kernel that it is part of, None outside of kernels.
        issuer: who receives its instructions; None outside of kernels.
        state: what a layer above keeps of the kernel, see `nki.first_generation.state`.
    """

    core: Core | None = None
    run: KernelRun | None = None
    issuer: Issuer | None = None
    state: object = None


# The default is a tuple, which nobody changes.
_here: ContextVar[Surroundings] = ContextVar(
    "nki_surroundings",
    default=Surroundings(),  # noqa: B039
)
# For calls of instructions, of which there are many: what surrounds the code that runs.
surroundings = _here.get


def current_run() -> KernelRun | None:
    """Return this thread's kernel, None outside of kernels."""
    return _here.get().run


def current_core() -> Core:
    """Return the core that this thread's kernel runs on; outside of a kernel, one of its own."""
    core = _here.get().core
    if core is None:
        core = Core(default_target())
        _here.set(_here.get()._replace(core=core))
    return core


@contextmanager
def use(**changes: Any) -> Iterator[None]:
    """Change fields of this thread's :class:`Surroundings` within a ``with`` block."""
    token = _here.set(_here.get()._replace(**changes))
    try:
        yield
    finally:
        _here.reset(token)
