"""The source of a function, if what Python finds is the function's.

Python looks a source up by file and line, where something else may stand: a file was edited since,
or, from Python 3.13 on, the text of ``python -c`` for whatever was compiled from a string.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import tokenize
import types
from dataclasses import dataclass

__all__ = ["Source", "is_as_written", "source_of"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

# `from __future__ import annotations`, which an earlier cell of a notebook may have said.
_FUTURE = annotations.compiler_flag


@dataclass(frozen=True, slots=True)
class Source:
    """Where a function is defined.

    Attributes:
        node: The definition; its lines count from `first`.
        file: The file's name.
        first: The line that the definition begins at, decorators included.
    """

    node: Definition
    file: str
    first: int


def source_of(function: types.FunctionType) -> Source | None:
    """Read and parse a function's definition; None if it is not to be had, or another's."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(function) or "?"
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    code = function.__code__
    for node in ast.walk(tree):
        if isinstance(node, Definition) and _is_of(node, code):
            return Source(node, file, max(first, 1))
    return None


def is_as_written(function: types.FunctionType) -> bool:
    """Return whether a function's file still has its definition, compared as code.

    Of a test module nothing is said, since pytest compiles its assertions anew.
    """
    if "@pytest_ar" in function.__globals__:
        return True
    code = function.__code__
    try:
        lines, _ = inspect.findsource(function)
        found = _functions("".join(lines), code.co_flags & _FUTURE)
    except (OSError, SyntaxError, ValueError):
        return False
    other = found.get((code.co_firstlineno, code.co_name))
    return other is not None and (other.co_code, other.co_names) == (code.co_code, code.co_names)


@functools.lru_cache(maxsize=4)  # a file's kernels come one after another
def _functions(text: str, flags: int) -> dict[tuple[int, str], types.CodeType]:
    """The code of every function in a text, by first line and name."""
    found: dict[tuple[int, str], types.CodeType] = {}
    pending = [compile(text, "", "exec", flags, dont_inherit=True)]
    while pending:
        code = pending.pop()
        found[code.co_firstlineno, code.co_name] = code
        pending.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
    return found


def _is_of(node: Definition, code: types.CodeType) -> bool:
    """Return whether names and parameters are the same."""
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    given = node.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    parameters.extend(p for p in (given.vararg, given.kwarg) if p is not None)
    names = tuple(p.arg for p in parameters)
    starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(
        code.co_flags & inspect.CO_VARKEYWORDS
    )
    count = code.co_argcount + code.co_kwonlyargcount + starred
    positional = len(given.posonlyargs) + len(given.args)
    return (name, positional, names) == (
        code.co_name,
        code.co_argcount,
        code.co_varnames[:count],
    )
