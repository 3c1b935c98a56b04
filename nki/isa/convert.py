"""The values that attributes accept, and the canonical values that these become.

Each function takes what the user gave and returns a plain value: the name of an operator or of an
enumeration member as a string, an int, a float, a bool, a tuple. It raises ValueError with a text
that continues "tensor_scalar op0 ", the remedy after a semicolon.
"""

from __future__ import annotations

import enum
import numbers
import operator
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from nki.isa import enums
from nki.isa.act import ACTIVATIONS
from nki.isa.alu import ALU, op_name
from nki.isa.spec import Attribute

__all__ = [
    "NAME",
    "accumulate",
    "activation",
    "engine",
    "flag",
    "integer",
    "integers",
    "member",
    "number",
    "op",
    "optional",
    "pattern",
]

Convert = Callable[[Any], Any]


def op(*allowed: str, bypass: bool = False, none: bool = False) -> Convert:
    """Accept operators: those named, or every one of the table."""
    legal: Collection[str] = allowed or tuple(ALU)

    def convert(given: Any) -> str | None:
        if given is None and none:
            return None
        name = op_name(given) if given is not None else None
        if bypass and name == "bypass":
            return name
        if name not in legal:
            raise ValueError(f"cannot be {name}; use one of nl.{', nl.'.join(legal)}")
        return name

    return convert


def activation(given: Any) -> str:
    """Accept activation functions."""
    name = op_name(given)
    if name not in ACTIVATIONS:
        raise ValueError(f"cannot be {name}; use one of nl.{', nl.'.join(ACTIVATIONS)}")
    return name


def member(kind: type[enum.Enum], *allowed: str) -> Convert:
    """Accept the members of an enumeration, their names and their values, as 0.2 kernels wrote."""
    legal = allowed or tuple(item.name for item in kind)

    def convert(given: Any) -> str:
        name = given.name if isinstance(given, enum.Enum) else given
        if not isinstance(given, enum.Enum):
            name = next((m.name for m in kind if given in (m.name, m.value)), given)
        same_kind = not isinstance(given, enum.Enum) or type(given).__name__ == kind.__name__
        if name not in legal or not same_kind:
            choices = ", ".join(f"nisa.{kind.__name__}.{item}" for item in legal)
            raise ValueError(f"cannot be {given}; use one of {choices}")
        return str(name)

    return convert


def flag(given: Any) -> bool:
    """Accept True and False."""
    if not isinstance(given, (bool, np.bool_, int)) or given not in (0, 1):
        raise ValueError(f"must be True or False, got {given!r}")
    return bool(given)


def accumulate(given: Any) -> bool | None:
    """Accept True, False and None."""
    return None if given is None else flag(given)


def integer(low: int | None = None, high: int | None = None) -> Convert:
    """Accept integers of a range, ends included."""

    def convert(given: Any) -> int:
        try:
            value = operator.index(given)
        except TypeError:
            raise ValueError(f"must be an integer, got {given!r}") from None
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError(f"must be between {low} and {high}, got {value}")
        return value

    return convert


INT32 = integer(-(2**31), 2**31 - 1)


def number(given: Any) -> float | int:
    """Accept a number, keeping integers apart from floats."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (numbers.Real, np.number)):
        raise ValueError(f"must be a number, got {given!r}")  # noqa: TRY004 (bind adds the context)
    return int(given) if isinstance(given, numbers.Integral) else float(given)


def integers(length: int | None = None, *, none: bool = False) -> Convert:
    """Accept a sequence of integers, of a certain length if one is given."""

    def convert(given: Any) -> tuple[int, ...] | None:
        if none and (given is None or given == ()):
            return None
        try:
            values = tuple(operator.index(item) for item in given)
        except TypeError:
            raise ValueError(f"must be a sequence of integers, got {given!r}") from None
        if length is not None and len(values) != length:
            raise ValueError(f"must have {length} elements, got {len(values)}")
        return values

    return convert


def optional(convert: Convert) -> Convert:
    """Accept None too."""
    return lambda given: None if given is None else convert(given)


def pattern(given: Any) -> tuple[tuple[int, int], ...]:
    """Accept ``[[step, count], ...]`` of one to four dimensions."""
    try:
        pairs = tuple((operator.index(step), operator.index(count)) for step, count in given)
    except (TypeError, ValueError):
        raise ValueError(f"must be a list of [step, count], got {given!r}") from None
    if not 1 <= len(pairs) <= 4 or any(count < 1 for _, count in pairs):
        raise ValueError(
            f"must have 1 to 4 dimensions with positive counts, got {given!r}; "
            "merge dimensions, or issue several instructions"
        )
    return pairs


def axes(given: Any) -> tuple[int, ...]:
    """Accept an axis or several."""
    if isinstance(given, (list, tuple)):
        return tuple(operator.index(axis) for axis in given)
    return (operator.index(given),)


def engine(default: str = "unknown") -> Attribute:
    """Make the usual `engine` attribute."""
    return Attribute("engine", member(enums.engine), default)


# Instructions can be named, for schedules and profiles.
NAME = Attribute("name", lambda given: None if given is None else str(given), None)
