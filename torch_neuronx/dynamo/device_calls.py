"""Calls of `torch.neuron` inside of compiled functions, as something that Dynamo can trace.

Imported when Dynamo has been, see `_register.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import assume_constant_result
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.variables.ctx_manager import (
    GenericDeviceVariable,
    register_device_context_manager,
)

from torch_neuronx import _C, neuron
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index


class NeuronDeviceVariable(GenericDeviceVariable):
    """`with torch.neuron.device(...)` in a compiled function."""

    _exchange_fn = staticmethod(neuron._exchange_device)
    _maybe_exchange_fn = staticmethod(neuron._maybe_exchange_device)
    _get_device_index_fn = staticmethod(_get_device_index)

    def module_name(self) -> str:
        """Return where the context manager is found."""
        return "torch.neuron"

    def python_type(self) -> type:
        """Return the context manager."""
        return neuron.device


def _stream(stream: torch.Stream | None) -> Any:
    return contextlib.nullcontext() if stream is None else stream


def _current_stream(device: DeviceLike = None) -> torch.Stream:
    if device is None:  # Dynamo takes no None here
        return torch.accelerator.current_stream()
    return torch.accelerator.current_stream(torch.device("neuron", _get_device_index(device)))


def _synchronize(device: DeviceLike = None) -> None:
    index = _get_device_index(device, optional=True)
    torch.accelerator.synchronize(torch.device("neuron", index))


def _current_device() -> int:
    return torch.accelerator.current_device_index()


# Functions of torch.neuron or under it, and what Dynamo traces in their place.
_KNOWN: dict[Callable[..., Any], Callable[..., Any]] = {
    neuron.stream: _stream,
    neuron.current_stream: _current_stream,
    neuron.synchronize: _synchronize,
    _C.current_device: _current_device,
}

# The same during the whole life of a process.
_CONSTANT = (
    neuron.is_available,
    neuron.device_count,
    neuron.get_device_properties,
    neuron.get_device_capability,
    neuron.get_device_name,
)

# Generators are no part of graphs. Dynamo neither looks into these nor compiles them, which it else
# does where PyTorch calls them behind a graph break (`fork_rng`), and fails.
_UNTRACED = (
    neuron.get_rng_state,
    neuron.get_rng_state_all,
    neuron.set_rng_state,
    neuron.set_rng_state_all,
    neuron.manual_seed,
    neuron.manual_seed_all,
    neuron.seed,
    neuron.seed_all,
    neuron.initial_seed,
)


def register() -> None:
    """Tell Dynamo of all of these, once."""
    register_device_context_manager(neuron.device, NeuronDeviceVariable)
    for original, known in _KNOWN.items():
        torch.compiler.substitute_in_graph(original, skip_signature_check=True)(known)
    for function in _CONSTANT:
        assume_constant_result(function)
    for generator in _UNTRACED:
        vars(generator)["_torchdynamo_disable"] = True  # what `torch.compiler.disable` leaves
        skip_code(generator.__code__)
