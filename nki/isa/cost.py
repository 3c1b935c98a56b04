"""Costs of instructions: published formulas, and what follows from published rates.

`N` is the number of elements per partition of the operand that the source names, `MIN_II` the
minimum initiation interval. DMA costs are nanoseconds, all others cycles of the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from nki.isa.spec import Call, Cost

__all__ = [
    "DMA",
    "GPSIMD_START",
    "MIN_II",
    "OCTOBER",
    "dma_copy",
    "gpsimd",
    "plus_read",
    "streaming",
]

MIN_II = 64
GPSIMD_START = 150
OCTOBER = "NKI API reference of October 2025 (SDK 2.26), 'Estimated instruction cost'"
SHARED = "nki.api.shared.rst, 'Engine Selection'"
DMA = "NKI DMA bandwidth guide"

DMA_START_NS = 1300.0
# Bytes per nanosecond of one engine, and engines per core, by NeuronCore version.
_DMA_RATE = {2: 17.0, 3: 23.0, 4: 33.0}
_DMA_ENGINES = 16
_FULL_ROW_BYTES = 2048


def streaming(name: str, factor: float = 1.0, source: str = OCTOBER) -> Cost:
    """Return ``max(MIN_II, factor * N)`` of an operand."""
    return Cost(lambda call: max(MIN_II, factor * call.tile(name).free), source)


def plus_read(name: str) -> Cost:
    """Return ``max(MIN_II, N) + MIN_II``: the accumulators are read by a second instruction."""

    def cycles(call: Call) -> float:
        read = MIN_II if call.get("reduce_res") is not None else 0
        return max(MIN_II, call.tile(name).free) + read

    return Cost(cycles, OCTOBER)


def gpsimd(name: str) -> Cost:
    """Return ``150 + N``."""
    return Cost(lambda call: GPSIMD_START + call.tile(name).free, OCTOBER)


def by(cycles: Callable[[Call], float], source: str = OCTOBER) -> Cost:
    """Return a formula of its own."""
    return Cost(cycles, source)


def dma_copy(call: Call) -> float:
    """Nanoseconds of a copy: the start, then bytes at the rate of all engines of the core.

    Rows (contiguous bytes per partition) of less than 2 KiB use a proportional share of the rate.
    """
    moved = max(tile.size * tile.info.itemsize for _, _, tile in call.tiles())
    rows = [tile.free * tile.info.itemsize for _, _, tile in call.tiles() if tile.on_chip]
    share = min(1.0, min(rows, default=_FULL_ROW_BYTES) / _FULL_ROW_BYTES)
    rate = _DMA_RATE[call.generation] * _DMA_ENGINES * max(share, 1 / _FULL_ROW_BYTES)
    return DMA_START_NS + moved / rate
