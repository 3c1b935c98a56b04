"""The common parts of the kernels: tiles of at most 128 rows, loads, stores and transposes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki.isa as nisa
import nki.language as nl

__all__ = ["PARTITIONS", "load", "row_vector", "spans", "store", "transposed"]

PARTITIONS = 128


def spans(extent: int, size: int = PARTITIONS) -> Iterator[tuple[int, int]]:
    """Iterate over (first, end) of the parts of an extent; the last one may be shorter."""
    for start in range(0, extent, size):
        yield start, min(start + size, extent)


def load(src: Any, dtype: Any = None) -> Any:
    """Return a tile in SBUF with the content of a view of HBM, perhaps of another type."""
    tile = nl.ndarray(src.shape, dtype=src.dtype if dtype is None else dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    return tile


def store(dst: Any, tile: Any) -> None:
    """Write a tile to a view of HBM; the engine that copies it first casts it."""
    if tile.dtype != dst.dtype:
        cast = nl.ndarray(tile.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=cast, src=tile)
        tile = cast
    nisa.dma_copy(dst=dst, src=tile)


def transposed(tile: Any, dst: Any = None) -> Any:
    """Return a tile [p, f] of SBUF as [f, p], by the Tensor engine; p and f at most 128."""
    rows, columns = tile.shape
    turned = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=tile, engine=nisa.engine.tensor)
    if dst is None:
        dst = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=dst, src=turned)
    return dst


def row_vector(src: Any, rows: int) -> Any:
    """Return a vector [n] of HBM as a tile [rows, n] of SBUF: the same in every partition."""
    tile = nl.ndarray((rows, src.shape[0]), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src.ap([[0, rows], [1, src.shape[0]]]))
    return tile
