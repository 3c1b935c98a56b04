"""The one table of PyTorch's element types and the tensor IR's, and of NumPy's with it."""

from __future__ import annotations

import numpy as np
import torch

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import FLOATS8, DType

TO_IR: dict[torch.dtype, DType] = {
    torch.bool: DType.PRED,
    torch.int8: DType.S8,
    torch.int16: DType.S16,
    torch.int32: DType.S32,
    torch.int64: DType.S64,
    torch.uint8: DType.U8,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.float8_e4m3fn: DType.F8E4M3FN,
    torch.float8_e5m2: DType.F8E5M2,
    torch.float8_e8m0fnu: DType.F8E8M0,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
}
TO_TORCH: dict[DType, torch.dtype] = {ir: t for t, ir in TO_IR.items()}

# What the memory of a program holds. Neuron's own 8-bit float has no name in PyTorch: only kernels
# compute with it, and PyTorch sees its bits.
HELD: dict[DType, torch.dtype] = {**TO_TORCH, DType.F8E4M3: torch.uint8}

# What PyTorch's bridge to NumPy lacks, and the integers that carry the bits over it.
_CARRIERS: dict[torch.dtype, tuple[torch.dtype, DType]] = {
    dtype: (torch.uint8 if ir.itemsize == 1 else torch.int16, ir)
    for dtype, ir in TO_IR.items()
    if ir in FLOATS8 or ir is DType.BF16
}


def to_numpy(value: torch.Tensor) -> Array:
    """A contiguous copy, or the memory itself of a contiguous CPU tensor, as a NumPy array."""
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.dtype in _CARRIERS:
        carrier, ir = _CARRIERS[plain.dtype]
        return np.asarray(plain.view(carrier).numpy()).view(ir.numpy)
    return np.asarray(plain.numpy())


def from_numpy(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """The CPU tensor of an array; it owns its memory."""
    owned = np.array(array, order="C", copy=True)
    if dtype in _CARRIERS:
        carrier, _ = _CARRIERS[dtype]
        bits = owned.view(TO_IR[carrier].numpy)
        return torch.from_numpy(bits).view(dtype)
    return torch.from_numpy(owned)
