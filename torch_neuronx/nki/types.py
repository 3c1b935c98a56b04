"""NKI's element types and PyTorch's, and tensors of either as NumPy arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from nki.dtypes import canonical

__all__ = ["TO_TORCH", "host_array", "name_of", "tensor_of"]

Array = npt.NDArray[Any]

# Types that PyTorch lacks are handed over as integers that hold their bits.
TO_TORCH: dict[str, torch.dtype] = {
    "bool_": torch.bool,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "float16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "tfloat32": torch.float32,
    "float8_e4m3": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2_x4": torch.uint32,
    "float8_e4m3fn_x4": torch.uint32,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float4_e2m1fn_x4": torch.uint16,
}

# What NumPy has only with ml_dtypes: PyTorch's type of the bits, and NumPy's type.
_BITS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bool: (torch.uint8, np.uint8),
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu),
}
# Names by dtype, filled when met: `canonical` of a torch.dtype spells it out.
_NAMES: dict[torch.dtype, str] = {}


def name_of(dtype: torch.dtype) -> str:
    """Return NKI's name of a type of PyTorch.

    Raises:
        nki.errors.NkiTypeError: NKI has no such type (NKI001), for instance int64.
    """
    found = _NAMES.get(dtype)
    if found is None:
        found = _NAMES[dtype] = canonical(dtype)
    return found


def host_array(value: torch.Tensor) -> Array:
    """Return a tensor's contents as an array of the type that NKI stores them in.

    The array shares the memory of contiguous tensors on the CPU.
    """
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    bits = _BITS.get(plain.dtype)
    if bits is None:
        return np.asarray(plain.numpy())
    return np.asarray(plain.view(bits[0]).numpy()).view(bits[1])


def tensor_of(array: Array, name: str) -> torch.Tensor:
    """Return a CPU tensor that holds an array's elements, which are of NKI's type `name`."""
    dtype = TO_TORCH[name]
    # A copy, because a view of an array must not keep all of it, nor a read-only one be written to.
    owned = np.array(array, order="C", copy=True)
    if dtype is torch.bool:
        return torch.from_numpy(owned != 0)
    bits = _BITS.get(dtype, (dtype, None))[0]
    if bits is dtype:
        return torch.from_numpy(owned.view(np.uint8) if dtype is torch.uint8 else owned)
    return torch.from_numpy(owned.view(np.int16 if bits is torch.int16 else np.uint8)).view(dtype)
