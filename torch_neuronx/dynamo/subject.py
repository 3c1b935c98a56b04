"""Whose graph is compiled: the user's module or function, for people who wait."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._guards import TracingContext

# In the `meta` of Dynamo's graphs.
META = "neuron_subject"

_TORCH = str(Path(torch.__file__).parent)
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
_DECORATED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_current: ContextVar[str] = ContextVar("neuron_subject", default="")


def traced_subject() -> str:
    """Name what Dynamo traces, "BertModel.forward"; "" outside of a tracing.

    The class is the one that defines the method.
    """
    context = TracingContext.try_get()
    return "" if context is None else subject_of(context.traced_code)


def subject_of(codes: Sequence[CodeType]) -> str:
    """Name the first of these functions, or what it decorates.

    Args:
        codes: Dynamo's: the function that is compiled, then those inlined in it, inner ones first.
    """
    if not codes:
        return ""
    code = codes[0]
    if _is_decorator(code):
        inside = [c for c in codes[1:] if not _is_decorator(c)]
        if not (inside and inside[-1].co_name == "forward"):  # of a container of PyTorch's, say
            mine = [c for c in inside if not _is_torch(c)]
            inside = [c for c in mine if c.co_name == "forward"] or mine
        code = (inside or [code])[-1]
    name = code.co_qualname.rpartition("<locals>.")[2]
    return _RESUMED.sub(r"\1 from line \2", name)


def _is_decorator(code: CodeType) -> bool:
    """Return whether a function has the form of one that a decorator puts around another one."""
    takes_all = code.co_flags & _DECORATED == _DECORATED
    return takes_all and bool(code.co_freevars) and "<locals>" in code.co_qualname


def _is_torch(code: CodeType) -> bool:
    return code.co_filename.startswith(_TORCH)


def current_subject() -> str:
    """Whose graph this thread compiles; "" if nobody knows."""
    return _current.get()


def about(subject: str, compile_one: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with `current_subject` set while it runs."""

    def compile_it(*args: Any, **kwargs: Any) -> Any:
        with _about(subject):
            return compile_one(*args, **kwargs)

    return compile_it


@contextmanager
def _about(subject: str) -> Iterator[None]:
    token = _current.set(subject)
    try:
        yield
    finally:
        _current.reset(token)


def titled(name: str, subject: str) -> str:
    """The name of a program with that of its subject: "BertModel.forward (graph0.inference)"."""
    return f"{subject} ({name})" if subject else name
