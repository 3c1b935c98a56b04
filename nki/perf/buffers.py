"""How tiles without addresses share SBUF and PSUM: each takes the memory that is free longest.

A tile gets memory that nobody has used as long as there is any, then that of the tile whose last
instruction is longest ago. So a loop whose tiles are small runs ahead of itself by as many
iterations as fit, and one whose tiles are large waits for the memory of earlier ones.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from neuronxcc.perf.stream import Block, Ints
from nki.checks.capacity import quadrants
from nki.checks.flow import Times
from nki.core import Core, OnChip
from nki.memory import MemoryRegion
from nki.perf.cells import Cells, unique_rows
from nki.recording import Recording

__all__ = ["ordered", "ranges", "reuses", "take_over"]

_QUADRANTS = 4  # of the partitions; a tile of up to 32 of them takes one


def reuses(recording: Recording, times: Times, core: Core) -> list[tuple[int, int]]:
    """Return pairs of storages: one that is used, and an earlier one whose memory it takes."""
    found: list[tuple[int, int]] = []
    for region, memory, unit in (
        (MemoryRegion.sbuf, core.sbuf, 1),
        (MemoryRegion.psum, core.psum, core.psum.pitch // core.psum.banks),
    ):
        cores: dict[int, list[int]] = {}
        for number, storage in enumerate(recording.storages):
            if storage.region is region and times.last[number] >= 0:
                cores.setdefault(id(storage.core), []).append(number)
        for numbers in cores.values():
            found += _of_one(recording, times, numbers, memory, unit)
    return found


def _of_one(
    recording: Recording, times: Times, numbers: list[int], memory: OnChip, unit: int
) -> list[tuple[int, int]]:
    """Return the pairs of one core's memory."""
    storages = recording.storages
    placed = [i for i in numbers if storages[i].address is not None]
    # What addresses cover is nobody else's, the whole time.
    free = (memory.pitch // unit - _covered(recording, placed, unit)) * _QUADRANTS
    mine = np.array([i for i in numbers if storages[i].address is None], np.int64)
    begins = mine[np.argsort(times.first[mine], kind="stable")].tolist()
    ends = deque(mine[np.argsort(times.last[mine], kind="stable")].tolist())
    sizes = {number: _size(recording, number, unit) for number in begins}
    first, last = times.first.tolist(), times.last.tolist()
    old: deque[tuple[int, int]] = deque()  # storages that are not used any more, and their memory
    found: list[tuple[int, int]] = []
    for number in begins:
        while ends and last[ends[0]] < first[number]:
            done = ends.popleft()
            old.append((done, sizes[done]))
        size = sizes[number]
        fresh = min(size, max(free, 0))
        free -= fresh
        size -= fresh
        while size > 0 and old:
            done, room = old.popleft()
            found.append((number, done))
            if room > size:
                old.appendleft((done, room - size))
            size -= room
    return found


def _size(recording: Recording, number: int, unit: int) -> int:
    storage = recording.storages[number]
    return -(-storage.row_bytes // unit) * quadrants(storage)


def _covered(recording: Recording, numbers: list[int], unit: int) -> int:
    """Return how many units of each partition tensors with addresses cover, at the most."""
    spans = []
    for number in numbers:
        storage = recording.storages[number]
        assert storage.address is not None
        begin = storage.address[1]
        spans.append((begin // unit, -(-(begin + storage.row_bytes) // unit)))
    total = reach = 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total


# --- from pairs of tiles to cells ----------------------------------------------------------------


def take_over(blocks: list[Block], cells: Cells, new: Ints, old: Ints) -> None:
    """Let who first touches a tile wait for the last uses of the tile whose memory it takes.

    For each of those first instructions and each pair of tiles there is a cell of its own, which
    the last uses read and it writes.

    Args:
        blocks: of the stream; they are changed.
        cells: of the memories.
        new: tiles, as places in `cells.memory`.
        old: of each of them a tile whose memory it takes, likewise.
    """
    firsts, finals = _ends(blocks)
    pair, begin = _joined(firsts[:, 0], cells.low[new], cells.high[new])
    begins, _ = unique_rows(np.stack([pair, firsts[begin, 1], firsts[begin, 2]], 1))
    pair, end = _joined(finals[:, 0], cells.low[old], cells.high[old])
    ends, _ = unique_rows(np.stack([pair, finals[end, 1], finals[end, 2]], 1))
    made = int(cells.high.max(initial=0)) + np.arange(len(begins))
    row, use = _joined(ends[:, 0], begins[:, 0], begins[:, 0] + 1)
    for number, block in enumerate(blocks):
        writes = begins[:, 1] == number
        reads = ends[use, 1] == number
        event = [block.event, begins[writes, 2], ends[use[reads], 2]]
        cell = [block.cell, made[writes], made[row[reads]]]
        kind = [np.ones(int(writes.sum()), np.int64), np.zeros(int(reads.sum()), np.int64)]
        block.event, block.cell = np.concatenate(event), np.concatenate(cell)
        block.writes = np.concatenate([block.writes, *kind])
        ordered(block)


def _ends(blocks: list[Block]) -> tuple[Ints, Ints]:
    """Return the first and the last uses of each cell in each block: cell, block, instruction.

    The last uses are the reads after the last write, or that write if nothing reads it.
    """
    firsts: list[Ints] = []
    finals: list[Ints] = []
    for number, block in enumerate(blocks):
        order = np.lexsort((block.event * 2 + block.writes, block.cell))
        cell, event = block.cell[order], block.event[order]
        write = block.writes[order] == 1
        count = len(order)
        at = np.arange(count)
        new = np.append(True, cell[1:] != cell[:-1])[:count]
        end = np.append(np.flatnonzero(new)[1:], count)[np.cumsum(new) - 1]
        last = np.maximum.accumulate(np.where(write, at, -1))[end - 1] if count else at
        final = (at > last) | ((at == last) & (at == end - 1))
        for found, chosen in ((firsts, new), (finals, final)):
            found.append(
                np.stack([cell[chosen], np.full(int(chosen.sum()), number), event[chosen]], 1)
            )
    return tuple(  # type: ignore[return-value]
        table[np.argsort(table[:, 0], kind="stable")]
        for table in (np.concatenate(firsts), np.concatenate(finals))
    )


def _joined(keys: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return for ranges of keys the number of the range and the place of each key in it.

    Args:
        keys: ascending.
        low: where each range begins.
        high: where it ends.
    """
    begin, end = np.searchsorted(keys, low), np.searchsorted(keys, high)
    return np.repeat(np.arange(len(low)), end - begin), ranges(begin, end)


def ranges(begin: Ints, end: Ints) -> Ints:
    """Return the integers from each begin to below its end, one range after the other."""
    sizes = end - begin
    shift: Ints = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)
    return shift + np.arange(len(shift))


def ordered(block: Block) -> None:
    """Put the accesses of a block in the order of its instructions."""
    order = np.argsort(block.event, kind="stable")
    block.event, block.cell = block.event[order], block.cell[order]
    block.writes = block.writes[order]
