"""Kernels in code that Dynamo traces: opaque to it, seen through by AOTAutograd.

`nonstrict_trace` is PyTorch's way to say that. AOTAutograd then calls the kernel with fake tensors,
which records it, and the graph gets `torch_neuronx_nki::run`.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch._dynamo import nonstrict_trace
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from nki import tracer
from nki.errors import NkiError
from nki.kernel import kernel_of

__all__ = ["register"]


# Arguments that are no constants to Dynamo travel through the graph as names of them.
_PREFIX = "\0nki"
_NONE = f"{_PREFIX} none"
_BASIC = (bool, int, float, str, torch.Tensor, torch.dtype)
_KEPT: dict[str, Any] = {_NONE: None}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _named(value: Any) -> str:
    """Return a name for something that Dynamo knows the value of: an enum, a function, a class."""
    for name, kept in _KEPT.items():
        if kept is value:
            return name
    name = f"{_PREFIX} {len(_KEPT)}"
    _KEPT[name] = value
    return name


_REFUSALS: list[NkiError] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refusal(number: int) -> str:
    return str(_REFUSALS[number])


def _run(handle: str, variant: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
    kernel = copy.copy(kernel_of(handle))
    kernel.grid, kernel.edges = variant
    # Also where Dynamo has given a function up and runs its parts, it leaves nki's insides alone.
    return tracer.run(kernel, _decoded(args), _decoded(kwargs))


@nonstrict_trace
def _call(
    handle: str, variant: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Call a kernel with fake tensors; no result is (), a refusal (its number, 0)."""
    try:
        result = _run(handle, variant, args, kwargs)
    except NkiError as error:
        if not is_in_torch_dispatch_mode():  # it runs for real
            raise
        # Raised here, PyTorch would report something else in its place.
        _REFUSALS.append(error)
        return len(_REFUSALS) - 1, 0
    return () if result is None else (result,)


def _traced(
    handle: str, variant: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The function that Dynamo reads in place of a kernel's call."""
    result = _call(handle, variant, _encoded(args), _encoded(kwargs))
    if len(result) == 2:
        raise ValueError(_refusal(result[0]))
    return result[0] if len(result) else None


def _encoded(value: Any) -> Any:
    if value is None:
        return _NONE
    if isinstance(value, tuple):
        return tuple([_encoded(item) for item in value])
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    # The sum is a string of Dynamo's own; what the function returned belongs to its graph.
    return value if isinstance(value, _BASIC) else _named(value) + ""


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_PREFIX):
        return _KEPT[value]
    if isinstance(value, (tuple, list)):
        return type(value)(_decoded(item) for item in value)
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return value


def register() -> None:
    """Tell nki: while Dynamo traces, calls of kernels go here."""
    shield = functools.partial(torch.compiler.disable, reason="records or runs a kernel")
    tracer.use_tracer(torch.compiler.is_dynamo_compiling, _traced, shield)
