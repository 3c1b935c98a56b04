"""Kernels that the tests of PyTorch's side call."""

from __future__ import annotations

import enum
from typing import Any

import nki.isa as nisa
import nki.language as nl
from torch_neuronx import nki


class Way(enum.Enum):
    ADD = "add"
    SUBTRACT = "subtract"


@nki.jit
def combine(a: Any, b: Any, scale: float = 1.0, way: Way | None = None) -> Any:
    """a * scale +- b; at most 128 rows."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x, y = nl.ndarray(a.shape, dtype=a.dtype), nl.ndarray(a.shape, dtype=a.dtype)
    nisa.dma_copy(dst=x, src=a)
    nisa.dma_copy(dst=y, src=b)
    nisa.tensor_scalar(dst=x, data=x, op0="multiply", operand0=scale)
    nisa.tensor_tensor(dst=x, data1=x, data2=y, op="add" if way is None else way.value)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def increment_into(a: Any, out: Any) -> None:
    """Write a + 1 to out; returns nothing."""
    x = nl.ndarray(a.shape, dtype=a.dtype)
    nisa.dma_copy(dst=x, src=a)
    nisa.tensor_scalar(dst=x, data=x, op0="add", operand0=1.0)
    nisa.dma_copy(dst=out, src=x)


@nki.jit
def shift(cache: Any, row: Any) -> Any:
    """Write a row to the front of a cache; return the cache, and a new tensor: its rows moved."""
    out = nl.ndarray(cache.shape, dtype=cache.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[1:], src=cache[:-1])
    nisa.dma_copy(dst=out[0:1], src=row)
    nisa.dma_copy(dst=cache[0:1], src=row)
    return cache, {"moved": out, "second": out[1]}


@nki.jit
def sine(a: Any, out: Any) -> None:
    """Write sin(a) to out."""
    nl.store(out, value=nl.sin(nl.load(a)))


@nki.jit
def cosine(a: Any, out: Any) -> None:
    """Write cos(a) to out."""
    nl.store(out, value=nl.cos(nl.load(a)))
