"""Slots that hold rows: one per partition, a fixed number of bytes apart, elements side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.natives.table import NativeSlot

__all__ = ["reach", "view"]


def reach(rows: int, row_bytes: int, used: int, *, written: bool = False) -> NativeSlot:
    """Return what rows of `used` bytes touch."""
    return NativeSlot(0, (rows - 1) * row_bytes + used if rows and used else 0, written)


def view(slot: Array, rows: int, row_bytes: int, count: int, dtype: Any) -> Array:
    """Return the rows of a slot as an array of shape (rows, count)."""
    kind = np.dtype(dtype)
    return np.ndarray((rows, count), kind, slot, strides=(row_bytes, kind.itemsize))
