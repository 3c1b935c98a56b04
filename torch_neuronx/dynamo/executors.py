"""The executors of imported graphs: the native program, a NeuronCore's instructions, or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from torch_neuronx.dynamo.importer import Imported

Executable = Callable[[list[Any]], list[torch.Tensor]]


def make_executable(imported: Imported, options: Mapping[str, Any]) -> Executable:
    """Something that takes the graph's arguments as a list and returns its results."""
    return _MAKERS[TORCH_NEURONX_EXECUTOR.get()](imported, options)


def makes_instructions() -> bool:
    """Return whether graphs become instructions of a NeuronCore."""
    return TORCH_NEURONX_EXECUTOR.get() == "device"


def _reference(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.reference import run_graph  # noqa: PLC0415

    return run_graph(imported, options)


def _program(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.reference import run_steps  # noqa: PLC0415

    return run_steps(imported, options)


def _device(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.reference import run_device  # noqa: PLC0415

    return run_device(imported, options)


def _native(imported: Imported, options: Mapping[str, Any]) -> Executable:
    from torch_neuronx.dynamo.native import compile_native  # noqa: PLC0415

    return compile_native(imported, options)


_MAKERS: dict[str, Callable[[Imported, Mapping[str, Any]], Executable]] = {
    "native": _native,
    "program": _program,
    "reference": _reference,
    "device": _device,
}
