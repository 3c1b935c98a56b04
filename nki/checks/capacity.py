"""Whether the tensors that are in use at the same time fit SBUF and PSUM.

A tensor without an address is in use from its first to its last instruction, and through the whole
of a loop on the device that it was created outside of. It takes its bytes per partition of SBUF,
whatever its number of partitions, and whole banks of PSUM. Tensors with addresses take what their
addresses cover. This is the least that an allocator needs which keeps the order of instructions.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from nki.checks.flow import Ints, Times
from nki.errors import NkiError
from nki.memory import MemoryRegion, OnChip, Storage
from nki.recording import Recording

__all__ = ["check_capacity"]

_SHOWN = 3  # tensors that the message names


class _Memory(NamedTuple):
    """What is counted in one of the two memories.

    Attributes:
        code: of the error.
        unit: what is counted, for messages.
        size: bytes of one unit.
        remedy: what to do.
    """

    code: str
    unit: str
    size: int
    remedy: str


def check_capacity(recording: Recording, times: Times, sbuf: OnChip, psum: OnChip) -> None:
    """Check one core's recording.

    Args:
        recording: of one core.
        times: when its storages are used.
        sbuf: the core's SBUF.
        psum: the core's PSUM.

    Raises:
        NkiError: more is in use at some instruction than there is (NKI220, NKI221).
    """
    bytes_ = _Memory(
        "NKI220", "bytes per partition", 1, "use smaller or fewer tiles, or use a tile again"
    )
    banks = _Memory(
        "NKI221",
        "banks",
        psum.pitch // psum.banks,
        "copy results to SBUF earlier, or put several into one PSUM tensor of a bank",
    )
    for region, memory, kind in (
        (MemoryRegion.sbuf, sbuf, bytes_),
        (MemoryRegion.psum, psum, banks),
    ):
        _check(recording, times, region, memory.pitch // kind.size, kind)


def _check(
    recording: Recording, times: Times, region: MemoryRegion, capacity: int, kind: _Memory
) -> None:
    storages = recording.storages
    used = [
        i for i, s in enumerate(storages) if s.region is region and times.last[i] >= 0
    ]  # fmt: skip
    free = np.array([i for i in used if storages[i].address is None], np.int64)
    if not len(free):
        return  # a tensor with an address was checked when it was made
    sizes = np.array([-(-storages[i].row_bytes // kind.size) for i in free], np.int64)
    delta = np.zeros(len(times.location) + 1, np.int64)
    np.add.at(delta, times.first[free], sizes)
    np.add.at(delta, times.last[free] + 1, -sizes)
    _add_covered(delta, times, storages, [i for i in used if storages[i].address], kind.size)
    total = np.cumsum(delta[:-1])
    if int(total.max()) <= capacity:
        return
    when = int(np.argmax(total > capacity))
    live = [i for i in used if times.first[i] <= when <= times.last[i]]
    names = [
        _shown(recording, times, i)
        for i in heapq.nlargest(_SHOWN, live, key=lambda i: storages[i].row_bytes)
    ]
    raise NkiError(
        kind.code,
        f"{len(live)} tensors in use here take {total[when]} {kind.unit} of {region.name.upper()}, "
        f"and {recording.target.name} has {capacity}; the largest are {', '.join(names)}",
        kind.remedy,
        recording.locations[int(times.location[when])],
    )


def _shown(recording: Recording, times: Times, number: int) -> str:
    storage = recording.storages[number]
    file, line = recording.locations[int(times.location[times.used[number]])]
    name = f"{storage.name!r} " if storage.name else ""
    return f"{name}{storage.dtype}{list(storage.shape)} first used at {file}:{line}"


def _add_covered(
    delta: Ints, times: Times, storages: list[Storage], numbers: list[int], size: int
) -> None:
    """Add how much of a partition the live tensors with addresses cover, in units of ``size``."""
    spans: dict[int, tuple[int, int]] = {}
    for i in numbers:
        storage = storages[i]
        assert storage.address is not None
        begin = storage.address[1]
        spans[i] = begin // size, -(-(begin + storage.row_bytes) // size)
    edges = np.unique(np.array([edge for span in spans.values() for edge in span], np.int64))
    widths = np.diff(edges)
    counts = np.zeros(len(widths), np.int64)
    changes = [(int(times.first[i]), 1, i) for i in numbers]
    changes += [(int(times.last[i]) + 1, -1, i) for i in numbers]
    for when, change, i in sorted(changes):
        low, high = np.searchsorted(edges, spans[i])
        part = counts[low:high]
        part += change
        turned = part == (1 if change > 0 else 0)
        delta[when] += change * int(widths[low:high][turned].sum())
