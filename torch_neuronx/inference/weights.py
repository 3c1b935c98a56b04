"""`replace_weights`: other weights for a model that keeps them beside its program."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch


def replace_weights(
    neuron_model: torch.jit.ScriptModule, weights: torch.nn.Module | Mapping[str, torch.Tensor]
) -> None:
    """Exchange the weights of a module traced with `inline_weights_to_neff=False`, in place.

    Args:
        neuron_model: The traced module. If its weights are in the model, this warns and does
            nothing.
        weights: A module like the one that was traced, or its `state_dict`. Entries that the model
            does not use are ignored.

    Raises:
        ValueError: A weight is missing, or has another shape or type; nothing is changed then.
    """
    held = dict(neuron_model.named_parameters())
    if not held:
        warnings.warn(
            "replace_weights has nothing to replace: the model was traced with its weights in it; "
            "trace it with inline_weights_to_neff=False",
            UserWarning,
            stacklevel=2,
        )
        return
    if isinstance(weights, torch.nn.Module):
        weights = {**dict(weights.named_buffers()), **weights.state_dict()}
    missing = [name for name in held if name not in weights]
    if missing:
        raise ValueError(f"the weights have no {', '.join(map(repr, missing))}")
    for name, value in held.items():
        given = weights[name]
        if (given.shape, given.dtype) != (value.shape, value.dtype):
            raise ValueError(
                f"weight {name!r} must be {value.dtype}{list(value.shape)} as traced, got "
                f"{given.dtype}{list(given.shape)}"
            )
    with torch.no_grad():
        for name, value in held.items():
            value.copy_(weights[name])
