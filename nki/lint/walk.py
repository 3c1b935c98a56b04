"""Looks at the source of a kernel and of the user's functions that it calls."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nki.lint.rules import RULES
from nki.lint.scope import Scope, of_user
from nki.objects import NKIObject
from nki.source import source_of
from nki.versions import selected

__all__ = ["Problem", "problems"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a kernel that the NKI compiler refuses.

    Attributes:
        code: a key of `nki.errors.CODES`.
        text: what it is.
        remedy: what to write instead.
        file: where it stands.
        line: its line.
        sure: documented as an error; else inferred from what is documented as supported.
    """

    code: str
    text: str
    remedy: str
    file: str
    line: int
    sure: bool = True

    def __str__(self) -> str:
        return f"{self.text}; {self.file}:{self.line}; {self.remedy} [{self.code}]"


def problems(function: Callable[..., Any]) -> list[Problem]:
    """Return what the compiler of the selected version refuses in a kernel and what it calls.

    Args:
        function: a kernel, or the function of one.
    """
    version = selected()
    rules = [rule for rule in RULES if version >= rule.since]
    pending: list[Any] = [inspect.unwrap(function)]
    seen: set[int] = set()
    found: list[Problem] = []
    while pending:
        owner = pending.pop(0)
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        source = source_of(owner) if isinstance(owner, types.FunctionType) else None
        if source is None:
            if len(seen) == 1:
                found.append(_unreadable(owner))
            continue
        scope = Scope(owner, source.node, kernel=len(seen) == 1)
        for node in ast.walk(scope.root):
            scope.at(node)
            for rule in rules:
                if isinstance(node, rule.nodes):
                    for where, text in rule.broken(node, scope):
                        line = source.first + getattr(where, "lineno", 1) - 1
                        found.append(
                            Problem(rule.code, text, rule.remedy, source.file, line, rule.sure)
                        )
            if isinstance(node, (ast.Name, ast.Attribute)):
                pending.extend(_reached(scope.resolve(node)))
    return list(dict.fromkeys(found))


def _reached(value: Any) -> Iterator[Any]:
    inner = inspect.unwrap(value) if callable(value) and hasattr(value, "__wrapped__") else value
    if isinstance(inner, types.FunctionType) and of_user(inner):
        yield inner
    elif isinstance(inner, type) and issubclass(inner, NKIObject) and of_user(inner):
        for method in vars(inner).values():
            made = isinstance(method, types.FunctionType) and "<" in method.__code__.co_filename
            if isinstance(method, types.FunctionType) and not made and of_user(method):
                yield method


def _unreadable(owner: Any) -> Problem:
    code = getattr(owner, "__code__", None)
    return Problem(
        "NKI259",
        f"the source of {getattr(owner, '__name__', owner)!r} cannot be read",
        "define kernels in files",
        getattr(code, "co_filename", "?"),
        getattr(code, "co_firstlineno", 0),
    )
