"""NKI's element types and PyTorch's, and tensors of either as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuronxcc.ir.dtypes import from_numpy as ir_type
from nki.dtypes import NAMES, canonical, info
from torch_neuronx.program.dtypes import HELD, from_numpy, to_numpy

__all__ = ["TO_TORCH", "host_array", "name_of", "tensor_of"]

Array = npt.NDArray[Any]

# Types that PyTorch lacks are handed over as integers that hold their bits.
TO_TORCH: dict[str, torch.dtype] = {
    name: HELD[info(name).loop or ir_type(info(name).numpy)] for name in NAMES
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
    array = to_numpy(value)
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def tensor_of(array: Array, name: str) -> torch.Tensor:
    """Return a CPU tensor that holds an array's elements, which are of NKI's type `name`."""
    dtype = TO_TORCH[name]
    if dtype is torch.bool:
        array = array != 0
    elif dtype is torch.uint8:
        array = array.view(np.uint8)
    # A copy, because a view of an array must not keep all of it, nor a read-only one be written to.
    return from_numpy(array, dtype)
