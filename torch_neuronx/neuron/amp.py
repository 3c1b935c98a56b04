"""Automatic mixed precision: which types it may use, and its state under the older names."""

import torch


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
