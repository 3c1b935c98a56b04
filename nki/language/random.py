"""Random numbers: rand, random_seed, dropout."""

from __future__ import annotations

import itertools
import math
from typing import Any

from nki.context import current_core
from nki.dtypes import canonical
from nki.errors import NkiTypeError
from nki.isa.functions import FUNCTIONS
from nki.language.function import kind_of
from nki.language.tiles import cast_copy, new, tile
from nki.memory import MemoryRegion, region_of
from nki.tensor import NkiTensor, create

__all__ = ["dropout", "rand", "random_seed"]

_DROPPED_BITS = 8  # of 32: float32 holds the rest exactly


def random_seed(seed: NkiTensor) -> None:
    """Let the random numbers start anew, the same for the same seed.

    Args:
        seed: a tile of shape (1, 1) of 32 bits in SBUF or PSUM.

    Raises:
        NkiTypeError: it is no tile, for instance a number (NKI240).
        NkiValidationError: it has another size (NKI128) or type (NKI107).
    """
    if not isinstance(seed, NkiTensor):
        raise NkiTypeError(
            "NKI240",
            f"nl.random_seed seed must be a tile of shape (1, 1), got {seed!r}",
            "make one with nl.full((1, 1), 42, dtype=nl.int32)",
        )
    FUNCTIONS["set_rng_seed"](tile("random_seed", "seed", seed))


def rand(
    shape: tuple[int, ...], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """Return a new tensor of random numbers, uniform from 0 to 1; 1 only where rounding gives it.

    Args:
        shape: as of `nl.ndarray`.
        dtype: likewise.
        buffer: likewise; a tensor in HBM is written tile by tile.
        name: likewise.

    Raises:
        NkiError: what `nl.ndarray` raises.
        NkiValidationError: a data type that the engine does not take (NKI107).
    """
    kind, region = canonical(dtype), region_of(buffer)
    result = create(shape, kind, region, name)
    if region.on_chip:
        _fill(result)
        return result
    flat = result.reshape((math.prod(shape),))
    pmax, most = 128, 4096
    for start, size in _blocks(flat.size, pmax * most):
        rows = pmax if size % pmax == 0 else math.gcd(size, pmax)
        part = new((rows, size // rows), kind)
        _fill(part)
        FUNCTIONS["dma_copy"](flat[start : start + size], part)
    return result


def _blocks(total: int, most: int) -> list[tuple[int, int]]:
    """Return (start, size) of blocks of at most `most` elements."""
    starts = range(0, total, most)
    return [(s, e - s) for s, e in itertools.pairwise((*starts, total))]


def _fill(out: NkiTensor) -> None:
    if current_core().target.core.isa > 3:
        FUNCTIONS["rand2"](out, 0.0, 1.0)
        return
    bits = new(out.shape, "uint32")
    FUNCTIONS["rng"](bits)
    FUNCTIONS["tensor_scalar"](bits, bits, "right_shift", _DROPPED_BITS)
    FUNCTIONS["tensor_scalar"](out, bits, "multiply", 2.0 ** (_DROPPED_BITS - 32))


def dropout(x: NkiTensor, rate: float | NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in SBUF with each element of a tile replaced by 0 with some probability.

    The others keep their value: nothing is scaled.

    Args:
        x: a tile in SBUF or PSUM.
        rate: the probability, a number or a tile of one element per partition.
        dtype: the type of the result, by default that of `x`.

    Raises:
        NkiTypeError: `x` is no tile (NKI240).
        NkiValidationError: a rate outside of [0, 1] (NKI116), or of another shape (NKI106).
    """
    data = tile("dropout", "x", x)
    out = new(data.shape, data.dtype)
    FUNCTIONS["dropout"](out, data, rate)
    return out if kind_of(data, dtype) == data.dtype else cast_copy(out, dtype)
