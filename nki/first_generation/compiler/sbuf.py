"""Addresses of tiles in SBUF."""

from __future__ import annotations

from collections.abc import Callable

from nki.first_generation.compiler.modulo import modulo
from nki.first_generation.language.creation import Placement
from nki.memory import MemoryRegion

__all__ = ["alloc", "auto_alloc", "mod_alloc"]


def alloc(func: Callable[[tuple[int, ...], int, int], tuple[int, int]]) -> Placement:
    """Place tiles by a function: (block index, partitions, bytes) -> (partition, byte)."""
    return Placement(MemoryRegion.sbuf, func)


def mod_alloc(
    *,
    base_addr: int,
    base_partition: int = 0,
    num_par_tiles: tuple[int, ...] = (),
    num_free_tiles: tuple[int, ...] = (),
) -> Placement:
    """Place tiles modulo a number of places; see `nki.first_generation.compiler.modulo`."""

    def place(index: tuple[int, ...], partitions: int, nbytes: int) -> tuple[int, int]:
        return (
            modulo(index, num_par_tiles, partitions, base_partition),
            modulo(index, num_free_tiles, nbytes, base_addr),
        )

    return Placement(MemoryRegion.sbuf, place)


def auto_alloc() -> Placement:
    """Leave the address open."""
    return Placement(MemoryRegion.sbuf, None)
