"""The check that the tensors in use at the same time fit SBUF and PSUM.

A tensor without an address is in use from its first to its last instruction, and through the whole
of a loop on the device that it was created outside of. It takes its bytes per partition of SBUF, or
whole banks of PSUM, in as many quadrants of 32 partitions as it needs: engines reach tensors of up
to 32 partitions in each quadrant and of up to 64 in each half, so that such tensors lie side by
side. Tensors with addresses take what their addresses cover. What all of them take is divided by
the four quadrants: the least that an allocator needs which keeps the order of instructions.
Where a compiler places tensors, those of the first generation, it may spill them: then what would
be spilled is counted and named, and nothing is refused.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nki.checks.flow import Ints, Times
from nki.checks.spills import Spill, choose_spills, spills_of
from nki.core import Core, OnChip
from nki.errors import NkiError
from nki.isa.state import Finding
from nki.memory import MemoryRegion, Storage
from nki.recording import Recording

__all__ = ["Capacity", "Usage", "capacity_of", "check_capacity", "quadrants"]

_QUADRANTS, _ROWS = 4, 32  # of partitions
_SHOWN = 3  # tensors that the message names


class _Memory(NamedTuple):
    """The count of one of the two memories.

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


class Usage(NamedTuple):
    """How much of a memory the tensors take that are in use at the same time.

    Attributes:
        memory: "sbuf" or "psum".
        unit: what is counted: bytes per partition, or banks.
        capacity: what there is.
        peak: the most that is in use.
        where: file and line of the first instruction at which it is more than there is; of the
            first one at which it is the most, if it never is more; None without tensors.
        spills: what would be spilled; () where everything fits.
    """

    memory: str
    unit: str
    capacity: int
    peak: int
    where: tuple[str, int] | None
    spills: tuple[Spill, ...] = ()

    def __str__(self) -> str:
        text = f"{self.memory.upper()}: {self.peak} of {self.capacity} {self.unit}"
        if not self.spills or self.where is None:
            return text
        tiles = sum(spill.tiles for spill in self.spills)
        total = sum(spill.nbytes for spill in self.spills)
        file, line = self.where
        said = f"{text}; from {file}:{line} on {tiles} tensors of {total} bytes would be spilled:"
        return "\n".join([said, *(f"  {spill}" for spill in self.spills)])


class Capacity(NamedTuple):
    """The need of a kernel for the two memories on the chip, instruction after instruction.

    Attributes:
        target: name of the target.
        sbuf: in bytes per partition.
        psum: in banks.
    """

    target: str
    sbuf: Usage
    psum: Usage

    @property
    def spills(self) -> tuple[Spill, ...]:
        """The tensors that would be spilled, of both memories."""
        return self.sbuf.spills + self.psum.spills

    @property
    def spilled_bytes(self) -> int:
        """Bytes of all that would be spilled."""
        return sum(spill.nbytes for spill in self.spills)

    def __str__(self) -> str:
        return f"{self.target}\n{self.sbuf}\n{self.psum}"


def check_capacity(recording: Recording, times: Times, sbuf: OnChip, psum: OnChip) -> None:
    """Check one core's recording.

    Args:
        recording: of one core.
        times: when its storages are used.
        sbuf: the core's SBUF.
        psum: the core's PSUM.

    Raises:
        NkiError: more is in use at some instruction than there is (NKI220, NKI221). Where spilling
            tensors whose places a compiler chooses makes the others fit, it is a finding (NKI223).
    """
    for region, memory, kind in _memories(sbuf, psum):
        found = _measured(recording, times, region, memory.pitch // kind.size, kind)
        if not found.spills or found.where is None:
            continue
        shown = ", ".join(map(str, found.spills[:_SHOWN]))
        more = f", and {len(found.spills) - _SHOWN} more" if len(found.spills) > _SHOWN else ""
        text = (
            f"tensors take up to {found.peak} {found.unit} of {region.name.upper()}, and "
            f"{recording.target.name} has {found.capacity}: in the order of the kernel a compiler "
            f"would spill {sum(s.tiles for s in found.spills)} of them, of "
            f"{sum(s.nbytes for s in found.spills)} bytes: {shown}{more}"
        )
        recording.findings.append((Finding("NKI223", text), found.where))


def capacity_of(recording: Recording, times: Times) -> Capacity:
    """Return what one core's recording needs.

    Raises:
        NkiError: it does not fit, and cannot be made to fit by spilling (NKI220, NKI221).
    """
    core = Core(recording.target)
    usages = [
        _measured(recording, times, region, memory.pitch // kind.size, kind)
        for region, memory, kind in _memories(core.sbuf, core.psum)
    ]
    return Capacity(recording.target.name, *usages)


def _memories(sbuf: OnChip, psum: OnChip) -> tuple[tuple[MemoryRegion, OnChip, _Memory], ...]:
    bytes_ = _Memory(
        "NKI220", "bytes per partition", 1, "use smaller or fewer tiles, or use a tile again"
    )
    banks = _Memory(
        "NKI221",
        "banks",
        psum.pitch // psum.banks,
        "copy results to SBUF earlier, or put several into one PSUM tensor of a bank",
    )
    return (MemoryRegion.sbuf, sbuf, bytes_), (MemoryRegion.psum, psum, banks)


def _measured(
    recording: Recording, times: Times, region: MemoryRegion, capacity: int, kind: _Memory
) -> Usage:
    storages = recording.storages
    used = [
        i for i, s in enumerate(storages) if s.region is region and times.last[i] >= 0
    ]  # fmt: skip
    free = np.array([i for i in used if storages[i].address is None], np.int64)
    if not len(free):
        # A tensor with an address was checked when it was made.
        return Usage(region.name, kind.unit, capacity, 0, None)
    sizes = np.array([_size(storages[i], kind.size, capacity) for i in free], np.int64)
    may_spill = np.array([storages[i].spills for i in free])
    covered = np.zeros(len(times.location) + 1, np.int64)
    for quadrant in range(_QUADRANTS):
        placed = [i for i in used if storages[i].address and _reaches(storages[i], quadrant)]
        _add_covered(covered, times, storages, placed, kind.size)
    total = -(-np.cumsum((covered + _changes(times, free, sizes))[:-1]) // _QUADRANTS)
    peak = int(total.max())
    if peak <= capacity:
        return Usage(region.name, kind.unit, capacity, peak, _line(recording, times, total >= peak))
    where = _line(recording, times, total > capacity)
    kept, moved = free[~may_spill], free[may_spill]
    fixed = np.cumsum((covered + _changes(times, kept, sizes[~may_spill]))[:-1])
    room = capacity * _QUADRANTS
    chosen = choose_spills(times.first[moved], times.last[moved], sizes[may_spill], fixed, room)
    if chosen is not None:
        spills = spills_of(recording, times, moved[chosen].tolist())
        return Usage(region.name, kind.unit, capacity, peak, where, spills)
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
        where,
    )


def _changes(times: Times, numbers: Ints, sizes: Ints) -> Ints:
    """Return by how much the sizes in use change at each instruction."""
    delta = np.zeros(len(times.location) + 1, np.int64)
    np.add.at(delta, times.first[numbers], sizes)
    np.add.at(delta, times.last[numbers] + 1, -sizes)
    return delta


def _line(recording: Recording, times: Times, chosen: npt.NDArray[np.bool_]) -> tuple[str, int]:
    """Return the user's line of the first instruction that is chosen."""
    return recording.locations[int(times.location[int(np.argmax(chosen))])]


def _size(storage: Storage, unit: int, capacity: int) -> int:
    """Return what a tensor takes, in units of one quadrant each."""
    units = -(-storage.row_bytes // unit)
    # One that is wider than the memory fits nowhere, however few partitions it has.
    return units * (_QUADRANTS if units > capacity else quadrants(storage))


def quadrants(storage: Storage) -> int:
    """Return how many quadrants a tensor takes wherever it lies: 1, 2 or all."""
    rows = storage.shape[0]
    return 1 if rows <= _ROWS else 2 if rows <= 2 * _ROWS else _QUADRANTS


def _reaches(storage: Storage, quadrant: int) -> bool:
    """Return whether a tensor with an address has partitions in a quadrant."""
    assert storage.address is not None
    first = storage.address[0]
    return first < (quadrant + 1) * _ROWS and quadrant * _ROWS < first + storage.shape[0]


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
