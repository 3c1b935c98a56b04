"""What the tests of whole kernels share."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nki.isa as nisa
import nki.language as nl

__all__ = ["EPS", "Array", "bf16", "output", "random", "tile"]

Array = npt.NDArray[Any]

EPS = float(np.finfo(np.float32).eps)


def random(*shape: int, seed: int = 0) -> Array:
    """Return normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bf16(array: Array) -> Array:
    """Return an array in bfloat16."""
    return array.astype(ml_dtypes.bfloat16)


def tile(source: Any) -> Any:
    """Return a new tile in SBUF that holds what a view of HBM shows."""
    made = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=made, src=source)
    return made


def output(value: Any, dtype: Any = None) -> Any:
    """Return a new tensor in shared HBM that holds what a tile holds."""
    made = nl.ndarray(value.shape, dtype=dtype or value.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=made, src=value)
    return made
