"""Checks of arguments of `nki.language` that are no tiles of an instruction."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nki.errors import NkiTypeError
from nki.tensor import NkiTensor

__all__ = ["as_body", "as_integer", "as_integers", "as_tensor"]


def _refuse(function: str, name: str, given: Any, remedy: str) -> NkiTypeError:
    return NkiTypeError("NKI240", f"nl.{function} {name} is a {type(given).__name__}", remedy)


def as_tensor(function: str, name: str, given: Any) -> NkiTensor:
    """Return a tensor in any memory.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if not isinstance(given, NkiTensor):
        raise _refuse(function, name, given, "give a tensor")
    return given


def as_integer(function: str, name: str, given: Any) -> int:
    """Return an integer of Python.

    Raises:
        NkiTypeError: it is none (NKI240), or a register (NKI139).
    """
    try:
        return operator.index(given)
    except TypeError as error:
        if isinstance(error, NkiTypeError):
            raise
        raise _refuse(function, name, given, "give an integer") from None


def as_integers(function: str, name: str, given: Any) -> tuple[int, ...]:
    """Return a tuple of integers.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise _refuse(function, name, given, "give a tuple of integers")
    return tuple(as_integer(function, f"{name}[{i}]", item) for i, item in enumerate(given))


def as_body(function: str, given: Any) -> Callable[..., Any]:
    """Return the function that a loop of the device runs.

    Raises:
        NkiTypeError: it is none (NKI240).
    """
    if not callable(given):
        raise _refuse(function, "body_fun", given, "give a function that takes a register")
    made: Callable[..., Any] = given
    return made
