"""JAX's arrays as arguments of kernels, also while `jax.jit` traces.

JAX is imported only when it has been imported already: nobody else has such arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiTypeError
from nki.frontends import Frontend, executor
from nki.launch import Launch
from nki.returned import Returned, array_view, assemble
from nki.trees import leaves

__all__ = ["FRONTEND", "JaxFrontend"]

Array = npt.NDArray[Any]


class JaxFrontend(Frontend):
    """Arrays of JAX. They never change: a kernel that writes one must return it."""

    name = "jax"
    rank = 10

    def owns(self, value: Any) -> bool:
        """Return whether a value is an array of JAX, or stands for one while JAX traces."""
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(value, jax.Array)

    def describe(self, value: Any) -> tuple[tuple[int, ...], str]:
        """Return shape and NKI's type name."""
        return tuple(value.shape), canonical(value.dtype)

    def host(self, value: Any) -> Array:
        """Return an array's contents.

        Raises:
            NkiError: JAX is tracing, so there are none (NKI271).
        """
        import jax  # noqa: PLC0415

        if isinstance(value, jax.core.Tracer):
            raise NkiError(
                "NKI271",
                "the kernel looks at the contents of an array while jax.jit traces",
                "call it outside of jax.jit, or decide on the device with nl.dynamic_range or "
                "nl.while_loop",
            )
        return _stored(np.asarray(value))

    def execute(self, launch: Launch, values: list[Any]) -> Any:
        """Run on copies, and return arrays of JAX."""
        import jax  # noqa: PLC0415

        written = sorted(launch.written)
        self._check(launch, values)
        known = [jax.ShapeDtypeStruct(shape, _shown(dtype)) for shape, dtype in launch.outputs]
        changed = [jax.ShapeDtypeStruct(values[i].shape, values[i].dtype) for i in written]

        def run(*given: Any) -> list[Array]:
            stored = [_stored(np.asarray(array)) for array in given]
            kinds = [info(dtype).numpy for _, dtype in launch.arguments]
            arrays = [np.array(a, kind, order="C") for a, kind in zip(stored, kinds, strict=True)]
            outputs = launch.made(executor())(arrays)
            kept = [arrays[i].astype(stored[i].dtype) for i in written]
            return [
                _as(array, like.dtype)
                for array, like in zip([*outputs, *kept], [*known, *changed], strict=True)
            ]

        if any(isinstance(value, jax.core.Tracer) for value in values):
            found = list(jax.pure_callback(run, [*known, *changed], *values))
        else:
            found = [jax.numpy.asarray(array) for array in run(*values)]
        contents = list(values)
        for number, array in zip(written, found[len(known) :], strict=True):
            contents[number] = array
        return assemble(launch.results, found[: len(known)], contents, _part)

    @staticmethod
    def _check(launch: Launch, values: Sequence[Any]) -> None:
        for value in values:
            if not FRONTEND.owns(value):
                raise NkiTypeError(
                    "NKI272",
                    f"a kernel is called with arrays of JAX and a {type(value).__name__}",
                    "give all arrays of one call as arrays of JAX",
                )
        returned = {
            item.number for item in leaves(launch.results, Returned) if item.kind == "input"
        }
        lost = sorted(launch.written - returned)
        if lost:
            raise NkiError(
                "NKI275",
                f"the kernel writes array argument {lost[0]}, and arrays of JAX never change",
                "return the argument from the kernel: the call then returns its new content",
            )


def _part(source: Any, item: Returned) -> Any:
    import jax  # noqa: PLC0415

    if isinstance(source, jax.core.Tracer):
        raise NkiError(
            "NKI271",
            "the kernel returns a part of an array while jax.jit traces",
            "return whole arrays from the kernel, and take parts of them outside",
        )
    return jax.numpy.asarray(array_view(np.ascontiguousarray(source), item))


def _stored(array: Array) -> Array:
    """The array as the type that NKI stores its elements in."""
    kind = info(canonical(array.dtype)).numpy
    return array if array.dtype == kind else array.view(kind)


def _shown(dtype: str) -> np.dtype[Any]:
    return np.dtype(bool) if dtype == "bool_" else info(dtype).numpy


def _as(array: Array, dtype: np.dtype[Any]) -> Array:
    """Stored elements as those of the array that the caller sees."""
    return array != 0 if dtype == np.dtype(bool) else np.asarray(array, dtype)


FRONTEND = JaxFrontend()
