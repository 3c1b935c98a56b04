"""Tensors that a graph holds, as constants of the IR."""

from __future__ import annotations

import torch

from neuronxcc.ir import build
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo.dtypes import to_ir
from torch_neuronx.program.dtypes import TO_IR, to_numpy

# Above this many elements a tensor is an argument of the program, so that it is not kept twice.
_LARGE = 64


def literal_of(value: torch.Tensor, *, any_size: bool = False) -> Node | None:
    """The constant of a small tensor that has values; None for others."""
    if value.numel() > _LARGE and not any_size:
        return None
    if value.dtype not in TO_IR or _has_no_values(value):
        return None
    return build.constant(to_numpy(value), to_ir(value.dtype))


def _has_no_values(value: torch.Tensor) -> bool:
    return value.is_meta or (type(value) is not torch.Tensor and not _is_plain(value))


def _is_plain(value: torch.Tensor) -> bool:
    return isinstance(value, torch.nn.Parameter | torch.nn.Buffer)
