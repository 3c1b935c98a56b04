"""Tensors that a graph holds, as constants of the IR and as NumPy arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from neuronxcc.ir import build
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo.dtypes import to_ir
from torch_neuronx.program.dtypes import TO_IR

# Above this many elements a tensor is an argument of the program, so that it is not kept twice.
_LARGE = 64

_BITS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu),
}


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


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """A contiguous copy, or the memory itself of a contiguous CPU tensor, as a NumPy array."""
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.dtype in _BITS:
        bits, dtype = _BITS[plain.dtype]
        return np.asarray(plain.view(bits).numpy()).view(dtype)
    return np.asarray(plain.numpy())


def from_numpy(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The CPU tensor of an array; it owns its memory."""
    owned = np.array(array, order="C", copy=True)
    if dtype in _BITS:
        bits, _ = _BITS[dtype]
        return torch.from_numpy(owned.view(np.int16 if bits is torch.int16 else np.uint8)).view(
            dtype
        )
    return torch.from_numpy(owned)
