"""Checks of arguments of both languages that are no tiles of an instruction."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from nki.errors import NkiTypeError
from nki.tensor import NkiTensor

__all__ = [
    "as_function", "as_integer", "as_integers", "as_number", "as_range", "as_tensor", "as_text",
]  # fmt: skip


def as_integer(value: Any, what: str) -> int:
    """Return an integer of Python, or NumPy's.

    Raises:
        NkiTypeError: it is none (NKI240), or a register (NKI139).
    """
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(error, NkiTypeError):
            raise
        raise _refuse(value, what, "an integer") from None


def as_integers(value: Any, what: str) -> tuple[int, ...]:
    """Return a tuple of integers.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise _refuse(value, what, "a tuple of integers")
    return tuple(as_integer(item, f"{what}[{i}]") for i, item in enumerate(value))


def as_range(args: Sequence[Any], what: str) -> range:
    """Return the range of a stop, or of a start, a stop, and perhaps a step.

    Raises:
        NkiTypeError: there is none (NKI240).
    """
    numbers = as_integers(args, f"{what} argument")
    if not 1 <= len(numbers) <= 3 or numbers[2:] == (0,):
        raise NkiTypeError(
            "NKI240", f"{what} was given {numbers}", "give a stop, or a start, a stop and a step"
        )
    return range(*numbers)


def as_number(value: Any, what: str) -> float:
    """Return a number.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise _refuse(value, what, "a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _refuse(value, what, "a number") from None


def as_tensor(value: Any, what: str) -> NkiTensor:
    """Return a tensor in any memory.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if not isinstance(value, NkiTensor):
        raise _refuse(value, what, "a tensor")
    return value


def as_function(value: Any, what: str) -> Callable[..., Any]:
    """Return the function that a loop of the device runs.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if not callable(value):
        raise _refuse(value, what, "a function that takes a register")
    made: Callable[..., Any] = value
    return made


def as_text(value: Any, what: str) -> str:
    """Return a text.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if not isinstance(value, str):
        raise _refuse(value, what, "a text")
    return value


def _refuse(value: Any, what: str, wanted: str) -> NkiTypeError:
    return NkiTypeError("NKI240", f"{what} is a {type(value).__name__}", f"give {wanted}")
