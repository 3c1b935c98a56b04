"""How tiles without addresses share SBUF and PSUM: each takes the memory that is free longest.

A tile gets memory that nobody has used as long as there is any, then that of the tile whose last
instruction is longest ago. So a loop whose tiles are small runs ahead of itself by as many
iterations as fit, and one whose tiles are large waits for the memory of earlier ones.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from nki.checks.capacity import quadrants
from nki.checks.flow import Times
from nki.core import Core, OnChip
from nki.memory import MemoryRegion
from nki.recording import Recording

__all__ = ["reuses"]

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
    first, last = times.first.tolist(), times.last.tolist()
    old: deque[tuple[int, int]] = deque()  # storages that are not used any more, and their memory
    found: list[tuple[int, int]] = []
    for number in begins:
        while ends and last[ends[0]] < first[number]:
            done = ends.popleft()
            old.append((done, _size(recording, done, unit)))
        size = _size(recording, number, unit)
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
