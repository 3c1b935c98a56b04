"""NumPy's arrays in the memory of emulated cores."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from neuronxcc.ir.dtypes import FLOATS8, DType
from torch_neuronx._config import MAX_DEVICES
from torch_neuronx.program.dtypes import HELD

Array = np.ndarray[Any, Any]
Held = torch.Tensor  # memory of a core, for callers without PyTorch
# How every type crosses PyTorch's NumPy bridge: the tensor's type, and the unsigned integers that
# carry what the bridge lacks, for NumPy and for PyTorch.
_Bridge = tuple[torch.dtype, np.dtype[Any] | None, torch.dtype]
_BRIDGES: dict[np.dtype[Any], _Bridge] = {
    ir.numpy: (
        torch_type,
        np.dtype(f"u{ir.itemsize}") if ir in FLOATS8 or ir is DType.BF16 else None,
        getattr(torch, f"uint{8 * ir.itemsize}", torch.uint8),
    )
    for ir, torch_type in HELD.items()
}
_DEVICES = [torch.device("neuron", core) for core in range(MAX_DEVICES)]


def _bridge(dtype: np.dtype[Any]) -> _Bridge:
    found = _BRIDGES.get(dtype)
    if found is None:
        allowed = ", ".join(ir.numpy.name for ir in HELD)
        raise TypeError(f"dtype {dtype} is none of a NeuronCore's; allowed: {allowed}")
    return found


def device_type(dtype: np.dtype[Any]) -> torch.dtype:
    """The type under which the memory of an array is held.

    Raises:
        TypeError: Cores have no such type; the message lists theirs.
    """
    return _bridge(dtype)[0]


def reinterpreted(held: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """The same memory with another type and shape of the same size."""
    return _bytes(held).view(dtype).view(shape)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory. A single element may have any stride, so no reshape."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def on_host(array: Array) -> torch.Tensor:
    """A CPU tensor of the elements of an array, in its memory if that is possible.

    Raises:
        TypeError: Cores have no such type.
    """
    if not (array.flags.c_contiguous and array.dtype.isnative):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    torch_type, carrier, _ = _bridge(array.dtype)
    if array.nbytes == 0:
        return torch.empty(array.shape, dtype=torch_type)
    if not array.flags.writeable:
        # torch.from_numpy warns of arrays that are read only, such as JAX's; ours are only read.
        # The window does not keep the memory, so the tensor lives no longer than the array.
        window: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        flat: Array = np.frombuffer(window, array.dtype if carrier is None else carrier)
        host = torch.from_numpy(flat.reshape(array.shape))
    else:
        host = torch.from_numpy(array if carrier is None else array.view(carrier))
    return host if carrier is None else host.view(torch_type)


def to_device(array: Array, core: int) -> torch.Tensor:
    """A copy of an array on a core.

    Args:
        array: Of any layout and byte order.
        core: Index of the neuron device.

    Raises:
        TypeError: Cores have no such type.
        torch.OutOfMemoryError: The core's memory is full.
    """
    return on_host(array).to(_DEVICES[core])


def write(held: torch.Tensor, array: Array) -> None:
    """Write the elements of an array, in row order, into memory of the same size in bytes."""
    source = on_host(array)
    if source.dtype != held.dtype or source.shape != held.shape:
        source = _bytes(source)
        held = _bytes(held)
    held.copy_(source)


def read(held: torch.Tensor, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """A copy of memory as an array of a dtype and a shape of the same size."""
    host = held.cpu()
    torch_type, carrier, carried = _bridge(dtype)
    if torch_type is host.dtype and shape == host.shape:
        if carrier is None:
            return host.numpy()
        return host.view(carried).numpy().view(dtype)
    flat: Array = _bytes(host).numpy()
    return flat.view(dtype).reshape(shape)
