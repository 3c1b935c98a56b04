"""Polyfills for Dynamo, so that neuron tensors get through PyTorch's own front ends."""

from __future__ import annotations

import functools
import types

import torch
from torch.nn.attention import flex_attention as flex


@functools.cache
def register() -> None:
    """Tell Dynamo, once: while it traces FlexAttention, the neuron device is a device that has it.

    PyTorch's check lists device types and has no way to add one. Others are checked as before.
    """
    original = flex._validate_device
    # The same code under another identity, which Dynamo does not replace.
    check = types.FunctionType(original.__code__, original.__globals__, "_check_other_device")

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "neuron":
            check(query, key, value)

    torch.compiler.substitute_in_graph(original, skip_signature_check=True)(validate_device)
