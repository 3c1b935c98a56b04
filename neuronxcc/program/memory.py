"""The memory of steps: buffers, strided views of them, registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that steps refer to by its position in `Program.buffers`.

    kind:
      "input"     argument number `index`; its strides (elements) are fixed by the program
      "output"    result number `index`, allocated by the executor with these strides
      "temp"      `offset` bytes into the scratchpad, which the executor allocates once per call
      "constant"  `literal`, placed in device memory when the program is loaded
    """

    kind: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: int = -1
    offset: int = -1
    literal: Literal | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A strided window onto a buffer; strides and offset count elements of `dtype`."""

    buffer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Register:
    """An s32 value in a buffer; `element` counts s32 elements of it."""

    buffer: int
    element: int = 0


def is_packed(thing: Buffer | View) -> bool:
    """Return whether every stride is the product of the extents after it."""
    step = 1
    for extent, stride in zip(reversed(thing.shape), reversed(thing.strides), strict=True):
        if stride != step:
            return False
        step *= extent
    return True


def is_contiguous(view: View) -> bool:
    """Return whether elements lie in a row; strides of one element, and of none, say nothing."""
    step = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent != 1 and stride != step and 0 not in view.shape:
            return False
        step *= extent
    return True


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes from the first to the last element of a buffer.

    Raises:
        ValueError: It has another number of sizes than of strides.
    """
    if 0 in buffer.shape:
        return 0
    if len(buffer.shape) != len(buffer.strides):
        raise ValueError(
            f"a buffer has {len(buffer.shape)} sizes but {len(buffer.strides)} strides"
        )
    reach = sum((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))
    return (reach + 1) * buffer.dtype.itemsize


def as_elements(data: Array, dtype: np.dtype) -> Array:
    """Return bytes as elements, without a last one that is not whole."""
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)
