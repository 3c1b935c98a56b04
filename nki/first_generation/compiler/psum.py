"""Addresses of tiles in PSUM."""

from __future__ import annotations

from collections.abc import Callable

from nki.context import current_core
from nki.first_generation.compiler.modulo import modulo
from nki.first_generation.language.creation import Placement
from nki.memory import MemoryRegion

__all__ = ["alloc", "auto_alloc", "mod_alloc"]


def alloc(func: Callable[[tuple[int, ...], int, int], tuple[int, int, int]]) -> Placement:
    """Place tiles by a function: (block index, partitions, bytes) -> (bank, partition, byte)."""

    def place(index: tuple[int, ...], partitions: int, nbytes: int) -> tuple[int, int]:
        bank, partition, byte = func(index, partitions, nbytes)
        memory = current_core().psum
        return partition, bank * (memory.pitch // memory.banks) + byte

    return Placement(MemoryRegion.psum, place)


def mod_alloc(
    *,
    base_bank: int,
    base_addr: int = 0,
    base_partition: int = 0,
    num_bank_tiles: tuple[int, ...] = (),
    num_par_tiles: tuple[int, ...] = (),
    num_free_tiles: tuple[int, ...] = (),
) -> Placement:
    """Place tiles modulo a number of banks; see `nki.first_generation.compiler.modulo`."""

    def place(index: tuple[int, ...], partitions: int, nbytes: int) -> tuple[int, int, int]:
        return (
            modulo(index, num_bank_tiles, 1, base_bank),
            modulo(index, num_par_tiles, partitions, base_partition),
            modulo(index, num_free_tiles, nbytes, base_addr),
        )

    return alloc(place)


def auto_alloc() -> Placement:
    """Leave the address open."""
    return Placement(MemoryRegion.psum, None)
