"""What runs an imported graph: the native program, or the IR's NumPy reference for debugging."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

# The importer's lowerings ask this module which executor there is.
if TYPE_CHECKING:
    from torch_neuronx.dynamo.importer import Imported

VARIABLE = "TORCH_NEURONX_EXECUTOR"
Executable = Callable[[list[Any]], list[torch.Tensor]]


def executor_name() -> str:
    """The executor that the environment asks for: "native" or "reference".

    Raises:
        ValueError: the variable holds something else.
    """
    name = os.environ.get(VARIABLE, "").strip().lower() or "native"
    if name not in _MAKERS:
        raise ValueError(f"{VARIABLE}={name!r} is not known; allowed: {', '.join(_MAKERS)}")
    return name


def make_executable(imported: Imported, options: Mapping[str, Any]) -> Executable:
    """Something that takes the graph's arguments as a list and returns its results."""
    return _MAKERS[executor_name()](imported, options)


def _reference(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.reference import ReferenceExecutable  # noqa: PLC0415

    del options  # it does what the graph says, nothing else
    return ReferenceExecutable(imported)


def _native(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.native import compile_native  # noqa: PLC0415

    return compile_native(imported, options)


_MAKERS: dict[str, Callable[[Imported, Mapping[str, Any]], Executable]] = {
    "native": _native,
    "reference": _reference,
}
