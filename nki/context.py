"""What the current thread's kernel runs on and is recorded by."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt

    from nki.memory import Storage
    from nki.tensor import NkiTensor

__all__ = ["Recorder", "current_recorder", "use_recorder"]


class Recorder(Protocol):
    """What takes down a kernel's instructions, as far as the making of tensors needs it.

    Attributes:
        made: the first tensor by shape, data type and buffer as they were given, for others like
            it.
        depth: number of nested loops of the device that are open.
    """

    made: "dict[Any, NkiTensor]"
    depth: int

    def created(self, storage: "Storage") -> None:
        """Take note of a new storage."""

    def constant(self, storage: "Storage") -> None:
        """Take note of a storage that holds data from the start."""

    def stored(self, dtype: str) -> str:
        """Return the type that tensors of a type are stored as."""

    def peek(self, tensor: "NkiTensor") -> "npt.NDArray[Any]":
        """Return what a tensor holds now."""

    def fill(self, tensor: "NkiTensor", value: float) -> None:
        """Record that every element of ``tensor`` becomes ``value``, which its type can hold."""

    def decide(self, register: Any) -> bool | None:
        """Answer whether a register is true, None if what asks is no ``while`` of Python."""

    def copy(self, dst: "NkiTensor", src: "NkiTensor") -> None:
        """Record that ``dst`` becomes ``src``, of the same shape and data type."""

    def assign(self, dst: "NkiTensor", value: Any) -> bool:
        """Record ``dst[...] = value``; False if ``value`` is nothing that can be assigned."""


class _Current(threading.local):
    recorder: Recorder | None = None


_CURRENT = _Current()


def current_recorder() -> Recorder | None:
    """Return what records this thread's kernel, None outside of kernels."""
    return _CURRENT.recorder


@contextmanager
def use_recorder(recorder: Recorder) -> Iterator[None]:
    """Let ``recorder`` take down this thread's kernel within a ``with`` block."""
    before = _CURRENT.recorder
    _CURRENT.recorder = recorder
    try:
        yield
    finally:
        _CURRENT.recorder = before
