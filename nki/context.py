"""What the current thread's kernel runs on and is recorded by."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy.typing as npt

from nki.errors import NkiError

__all__ = ["KernelRun", "current_run", "use_run"]


class KernelRun(Protocol):
    """A kernel that runs, as its own code sees it: what tensors and `nki.language` ask of it.

    Tensors and registers are below this and above it at once: they ask, and they are what is asked
    about. So they have no types here.

    Attributes:
        made: the first tensor by shape, data type and buffer as they were given, for others like
            it.
        depth: number of nested loops of the device that are open.
    """

    made: dict[Any, Any]
    depth: int

    # --- making tensors --------------------------------------------------------------------------

    def created(self, storage: Any) -> None:
        """Take note of a new storage."""

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

    # --- what goes wrong -------------------------------------------------------------------------

    def finding(self, code: str, text: str, where: tuple[str, int] | None = None) -> None:
        """Take note of something that works here and is undefined on hardware."""

    def fail(self, error: NkiError) -> None:
        """Raise an error when the kernel has ended: it was found where Python lets none pass."""


class _Current(threading.local):
    run: KernelRun | None = None


_CURRENT = _Current()


def current_run() -> KernelRun | None:
    """Return this thread's kernel, None outside of kernels."""
    return _CURRENT.run


@contextmanager
def use_run(run: KernelRun) -> Iterator[None]:
    """Make ``run`` this thread's kernel within a ``with`` block."""
    before = _CURRENT.run
    _CURRENT.run = run
    try:
        yield
    finally:
        _CURRENT.run = before
