"""What a prediction keeps busy over time: DMA engines, the rate of transfers, memory on the chip.

All of it follows from the timeline. Times are picoseconds of what was simulated.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import Ints

__all__ = ["Packets", "Steps", "live_tiles", "memory_steps", "packets_of", "rate_steps"]


class Packets(NamedTuple):
    """What each DMA engine moved for each transfer, in the order in which engines were given.

    Attributes:
        number: instruction of the transfer.
        core: whose engine it is.
        engine: its number within the core.
        start: of its first byte.
        end: of its last byte.
    """

    number: Ints
    core: Ints
    engine: Ints
    start: Ints
    end: Ints


class Steps(NamedTuple):
    """Something that keeps a value until the next change of it.

    Attributes:
        time: when it changes, ascending.
        value: from then on.
    """

    time: Ints
    value: npt.NDArray[np.float64]


def packets_of(made: Prediction) -> Packets:
    """Return what the DMA engines moved: a transfer takes those that are free first."""
    engines = made.machine.target.core.dma_engines
    costs = [made.machine.cost(work) for work in made.stream.works]
    cores = [work.core for work in made.stream.works]
    free = [[0] * engines for _ in range(made.stream.cores)]
    rows = array("q")
    works = made.flat.work.tolist()
    for number, arrival in made.timeline.moves.tolist():
        cost, core = costs[works[number]], cores[works[number]]
        mine = free[core]
        for engine in sorted(range(engines), key=mine.__getitem__)[: cost.engines]:
            start = max(mine[engine], arrival)
            mine[engine] = start + cost.moving
            rows.extend((number, core, engine, start, start + cost.moving))
    return Packets(*np.array(rows, np.int64).reshape(-1, 5).T)


def rate_steps(made: Prediction, core: int, packets: Packets) -> Steps:
    """Return bytes per second that a core's DMA engines move at each moment."""
    sizes = np.array([w.transfer.nbytes if w.transfer else 0 for w in made.stream.works], float)
    mine = packets.core == core
    number, start, end = packets.number[mine], packets.start[mine], packets.end[mine]
    parts = np.bincount(packets.number, minlength=len(made.flat.work))
    share = sizes[made.flat.work[number]] / np.maximum(parts[number], 1)
    # Picoseconds to seconds.
    rate = share / np.maximum(end - start, 1) * 1e12
    return _steps(np.concatenate([start, end]), np.concatenate([rate, -rate]))


def live_tiles(made: Prediction) -> tuple[Ints, Ints, Ints]:
    """Return the tiles that are used, and when the first use of each starts and the last ends."""
    touched, tile = made.flat.touch, made.flat.tile
    count = len(made.stream.tiles)
    begin = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, -1, np.int64)
    np.minimum.at(begin, tile, made.timeline.start[touched])
    np.maximum.at(end, tile, made.timeline.end[touched])
    used = np.flatnonzero(end >= 0)
    return used, begin[used], end[used]


def memory_steps(made: Prediction, core: int, memory: str) -> Steps:
    """Return the bytes of "sbuf" or "psum" that the tiles of a core take at each moment."""
    used, begin, end = live_tiles(made)
    tiles = made.stream.tiles
    size = np.array(
        [
            tiles[i].partitions * tiles[i].row_bytes
            if (tiles[i].memory, tiles[i].core) == (memory, core)
            else 0
            for i in used.tolist()
        ],
        np.float64,
    )
    mine = size > 0
    begin, end, size = begin[mine], end[mine], size[mine]
    return _steps(np.concatenate([begin, end]), np.concatenate([size, -size]))


def _steps(time: Ints, change: npt.NDArray[np.float64]) -> Steps:
    """Return the sums of changes, one for each moment."""
    moments, where = np.unique(time, return_inverse=True)
    changes = np.bincount(where, change, minlength=len(moments))
    total: npt.NDArray[np.float64] = np.cumsum(changes, dtype=np.float64)
    # What the rounding of sums leaves is nothing.
    total[np.abs(total) < 1e-9 * np.abs(change).max(initial=1)] = 0
    return Steps(moments, total)
