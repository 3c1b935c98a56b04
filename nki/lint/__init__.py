"""Checks of a kernel's Python: what works here and not with the real compiler."""

from __future__ import annotations

import enum
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nki.errors import NkiError, NkiWarning
from nki.lint.scope import of_user
from nki.lint.switch import mode
from nki.lint.walk import Problem, problems
from nki.objects import NKIObject
from nki.versions import selected

__all__ = ["Problem", "check_arguments", "check_python", "enforce"]


def check_python(function: Callable[..., Any]) -> list[Problem]:
    """Return what the NKI compiler refuses in a kernel's Python; see `nki.lint.rules`.

    Args:
        function: a kernel or its function. Functions and classes of the user's that it names are
            looked at too, as far as names tell without running.
    """
    return problems(function)


def check_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Problem]:
    """Return which arguments of a kernel the NKI compiler refuses.

    Raises:
        TypeError: they do not fit its signature.
    """
    inner = inspect.unwrap(function)
    bound = inspect.signature(inner).bind(*args, **kwargs)
    code = inner.__code__
    return [
        Problem("NKI254", text, remedy, code.co_filename, code.co_firstlineno)
        for name, value in bound.arguments.items()
        for text, remedy in _refused(name, value)
    ]


def _refused(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _refused(f"{name}[{i}]", item)
    for shown, remedy, refuses in _ARGUMENTS:
        if refuses(value):
            what = shown.format(kind=type(value).__name__, value=value)
            yield f"the argument {name} {what}", remedy
            return


def _wide(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and not -(2**31) <= value < 2**32


# What is wrong with an argument, what to do, and the condition; of several the first is reported.
_ARGUMENTS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("is a list", "pass a tuple", lambda v: isinstance(v, list) and selected() >= (0, 3)),
    (
        "is a {kind}",
        "pass arrays, numbers, strings, tuples, NKIObjects, enumerations or None",
        lambda v: isinstance(v, (set, frozenset, bytes, complex)),
    ),
    (
        "is a dictionary with keys that are no strings",
        "use strings as keys",
        lambda v: isinstance(v, dict) and any(not isinstance(key, str) for key in v),
    ),
    ("is {value}", "integers have 32 bits", _wide),
    (
        "is of class {kind}",
        "derive the class from nl.NKIObject",
        lambda v: _is_instance_of_user(v) and not isinstance(v, NKIObject),
    ),
)


def _is_instance_of_user(value: Any) -> bool:
    kind = type(value)
    plain = isinstance(value, (int, float, str, enum.Enum, np.ndarray, np.generic, type))
    return not plain and not callable(value) and of_user(kind)


def enforce(found: list[Problem]) -> None:
    """Do with problems what ``TORCH_NEURONX_NKI_LINT`` says.

    ``warn`` warns of all; ``strict`` raises the first that is sure and warns of the others.

    Raises:
        NkiError: in mode ``strict``, or the mode is none (NKI247).
    """
    chosen = mode()
    if chosen == "off":
        return
    for problem in found:
        if chosen == "strict" and problem.sure:
            raise NkiError(problem.code, problem.text, problem.remedy, (problem.file, problem.line))
        text = f"{problem.text}; {problem.remedy} [{problem.code}]"
        warnings.warn_explicit(text, NkiWarning, problem.file, problem.line)
