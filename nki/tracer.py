"""Who takes the calls of kernels while a framework turns a program into a graph.

A framework that reads programs as Python, as Dynamo does, cannot follow the recording of a kernel.
It names here a test for such times, and what it wants to be called instead of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Call", "Runs", "is_active", "run", "traced", "use_tracer"]

# Takes the kernel's handle, its launch grid and schedule, and the arguments of the call.
Call = Callable[[str, tuple[Any, ...], tuple[Any, ...], dict[str, Any]], Any]


class Runs(Protocol):
    """A kernel, as tracers call it."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run now, whoever traces the program."""


def _never() -> bool:
    return False


def _nobody(_handle: str, _variant: tuple[Any, ...], _args: Any, _kwargs: Any) -> Any:
    raise AssertionError("nobody traces")


def _plain(kernel: Runs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kernel.run(args, kwargs)


# Read as globals of this module by tracers, which see what they are when they look.
is_active: Callable[[], bool] = _never
traced: Call = _nobody
run: Callable[[Runs, tuple[Any, ...], dict[str, Any]], Any] = _plain


def use_tracer(
    active: Callable[[], bool], call: Call, shield: Callable[[Callable[..., Any]], Any]
) -> None:
    """Let ``call`` take calls of kernels while ``active()``.

    Args:
        active: whether a program is being traced.
        call: takes the calls then.
        shield: makes a function one that the framework never looks into.
    """
    global is_active, traced, run
    is_active, traced, run = active, call, shield(_plain)
