"""Kinds of arrays that kernels are called with, and who runs kernels on them.

NumPy is known here. Others register by the entry point group ``nki.frontends``, whose entries name
an instance of :class:`Frontend`; they are loaded when an argument is met that nobody known owns.
"""

from __future__ import annotations

import functools
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_EXECUTOR
from neuronxcc.targets import Target
from nki.core import default_target
from nki.dtypes import info, name_of, named
from nki.reference import run as run_reference
from nki.returned import Returned, array_view, assemble

if TYPE_CHECKING:
    from nki.launch import Launch

__all__ = [
    "Frontend",
    "NumpyFrontend",
    "executor",
    "frontend_of",
]

Array = npt.NDArray[Any]
# Takes the array arguments, contiguous and writable; returns the outputs, whole.
Runner = Callable[[Sequence[Array]], list[Array]]
Executor = Callable[["Launch"], Runner]

_GROUP = "nki.frontends"
_EXECUTORS = "nki.executors"


class Frontend(ABC):
    """A kind of arrays that kernels are called with.

    Attributes:
        name: of the kind, for signatures and messages.
        rank: if a call has arguments of several kinds, the highest one runs it.
    """

    name: str
    rank: int = 0

    @abstractmethod
    def owns(self, value: Any) -> bool:
        """Return whether a value is an array of this kind."""

    @abstractmethod
    def describe(self, value: Any) -> tuple[tuple[int, ...], str]:
        """Return shape and NKI's type name of an array."""

    @abstractmethod
    def host(self, value: Any) -> Array:
        """Return what an array holds, of NKI's NumPy type."""

    @abstractmethod
    def execute(self, launch: Launch, values: list[Any]) -> Any:
        """Run a launch on its array arguments and return its results.

        Arguments that the kernel writes are changed in place; a result that is an argument is that
        very object.
        """

    def target(self, values: list[Any]) -> Target:
        """Return what a kernel on these arrays is checked for."""
        del values
        return default_target()


class NumpyFrontend(Frontend):
    """NumPy arrays, those of ml_dtypes included."""

    name = "numpy"

    def owns(self, value: Any) -> bool:
        """Return whether a value is an array with at least one dimension."""
        return isinstance(value, np.ndarray)

    def describe(self, value: Any) -> tuple[tuple[int, ...], str]:
        """Return shape and NKI's type name."""
        return value.shape, name_of(value.dtype)

    def host(self, value: Any) -> Array:
        """Return the array, as the type that NKI stores its elements in."""
        array: Array = value
        kind = info(name_of(array.dtype)).numpy
        return array if array.dtype == kind else array.view(kind)

    def execute(self, launch: Launch, values: list[Any]) -> Any:
        """Run on the host's memory."""
        given = [self.host(value) for value in values]
        kinds = [info(dtype).numpy for _, dtype in launch.arguments]
        used = [_usable(array, kind) for array, kind in zip(given, kinds, strict=True)]
        outputs = [
            array.view(named(dtype))
            for array, (_, dtype) in zip(launch.made(executor())(used), launch.outputs, strict=True)
        ]
        for i in launch.written:
            if used[i] is not given[i]:
                given[i][...] = used[i]

        def part(array: Array, item: Returned) -> Array:
            return array_view(used[item.number] if item.kind == "input" else array, item)

        return assemble(launch.results, outputs, values, part)


def _usable(array: Array, kind: np.dtype[Any]) -> Array:
    if array.flags.c_contiguous and array.flags.writeable and array.dtype == kind:
        return array
    return np.array(array, kind, order="C")


def executor(by: str | None = None) -> Executor:
    """Return who makes launches runnable on NumPy arrays.

    Args:
        by: ``native`` or ``reference``, the slow NumPy one; by default what
            `TORCH_NEURONX_NKI_EXECUTOR` says.

    Raises:
        ValueError: the variable names neither, or the native one is not installed.
    """
    return _reference if (by or TORCH_NEURONX_NKI_EXECUTOR.get()) == "reference" else _native()


def _reference(launch: Launch) -> Runner:
    recording = launch.recording
    return lambda arrays: run_reference(recording, arrays)


@functools.cache
def _native() -> Executor:
    for entry in importlib.metadata.entry_points(group=_EXECUTORS):
        made: Executor = entry.load()
        return made
    raise ValueError(
        "no native executor of NKI kernels is installed; install torch_neuronx, or set "
        f"{TORCH_NEURONX_NKI_EXECUTOR.name}=reference for the slow one"
    )


_NUMPY = NumpyFrontend()


@functools.cache
def _registered() -> tuple[Frontend, ...]:
    return tuple(entry.load() for entry in importlib.metadata.entry_points(group=_GROUP))


# Values of these types are never arrays, so that no plugin is loaded because of them.
# NumPy's scalars and their classes have a shape and a dtype too.
_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), tuple, list, dict, type, np.generic,
)  # fmt: skip


def frontend_of(value: Any) -> Frontend | None:
    """Return who owns a value, None if it is no array."""
    if isinstance(value, _PLAIN):
        return None
    if _NUMPY.owns(value):
        return _NUMPY
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    return next((frontend for frontend in _registered() if frontend.owns(value)), None)
