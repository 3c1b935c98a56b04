"""Automatic mixed precision: which types it may use, and its state and tools under older names."""

import functools
from typing import Any

import torch

from torch_neuronx import _C

#: ``torch.amp.custom_fwd`` and ``custom_bwd`` for the device, for ``torch.autograd.Function``.
custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="neuron")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="neuron")


class autocast(torch.amp.autocast):
    """``torch.autocast("neuron", ...)``.

    Args:
        enabled: Whether it is on.
        dtype: The type to compute in; by default that of :func:`get_autocast_dtype`.
        cache_enabled: Whether casts of weights are kept while it is on.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = True,
    ) -> None:
        super().__init__("neuron", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("neuron", ...)``; the arguments are its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("neuron", *args, **kwargs)


def amp_definitely_not_available() -> bool:
    """Return whether no device is there, so that scaling a loss would have no effect."""
    return _C.device_count() == 0


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the data types that ``torch.autocast("neuron", dtype=...)`` accepts."""
    return [torch.bfloat16, torch.float16]


def is_autocast_enabled() -> bool:
    """Return whether autocast is on for the device in this thread."""
    return torch.is_autocast_enabled("neuron")


def set_autocast_enabled(enabled: bool) -> None:
    """Turn autocast for the device on or off in this thread."""
    torch.set_autocast_enabled("neuron", enabled)


def get_autocast_dtype() -> torch.dtype:
    """Return the data type autocast computes in."""
    return torch.get_autocast_dtype("neuron")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Set the data type autocast computes in."""
    torch.set_autocast_dtype("neuron", dtype)
