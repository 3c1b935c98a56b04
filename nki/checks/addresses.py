"""Tensors with explicit addresses that overlap, and spoil each other's contents.

Two such tensors may share bytes, one after the other. It is a mistake where a kernel writes
through one tensor, then through another one that overlaps it, and then reads what it believes to
be still there through the first. This is found exactly, byte by byte, for the few tensors whose
addresses overlap while both are in use; accesses that a register moves are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nki.checks.flow import Leaf, TensorAccess, Times, accesses, events_of, leaf_roles
from nki.dtypes import info
from nki.isa.state import Finding
from nki.memory import MemoryRegion, Storage
from nki.recording import Recording, TileForm

__all__ = ["check_addresses"]

_OWN, _SPOILT = 1, 2  # bytes that the tensor wrote last; that another one wrote since

Columns = npt.NDArray[np.int64]
Cells = tuple[slice, slice | Columns]


def check_addresses(recording: Recording, times: Times) -> None:
    """Add findings (NKI222) to one core's recording."""
    partners = _overlapping(recording, times)
    if not partners:
        return
    roles = {id(template): leaf_roles(template) for template in recording.templates}
    chosen = [
        not template.hidden and any(_addressed(leaf) for leaf in roles[id(template)])
        for template in recording.templates
    ]
    maps = {number: _Map(recording.storages[number]) for number in partners}
    for event in events_of(recording.body, recording.templates, chosen):
        found = [
            access
            for access in accesses(event, roles[id(event.template)])
            if access.place[0] in maps and access.form.indirect is None
        ]
        for access in found:
            if access.leaf.reads:
                _read(recording, maps, access, event.template.row.name)
        for access in found:
            if access.leaf.writes:
                _write(recording, maps, partners, access)


def _addressed(leaf: Leaf) -> bool:
    return isinstance(leaf.form, TileForm) and leaf.form.addressed


def _overlapping(recording: Recording, times: Times) -> dict[int, list[int]]:
    """Return, by number, which storages have overlapping addresses while both are in use."""
    numbers = [
        i
        for i, storage in enumerate(recording.storages)
        if storage.address is not None and times.last[i] >= 0
    ]
    partners: dict[int, list[int]] = {}
    active: list[tuple[int, tuple[MemoryRegion, int, int, int, int], int]] = []
    for number in sorted(numbers, key=lambda i: int(times.first[i])):
        here = _rectangle(recording.storages[number])
        begin = int(times.first[number])
        active = [item for item in active if item[2] >= begin]
        for other, there, _ in active:
            if _meet(here, there):
                partners.setdefault(number, []).append(other)
                partners.setdefault(other, []).append(number)
        active.append((number, here, int(times.last[number])))
    return partners


def _rectangle(storage: Storage) -> tuple[MemoryRegion, int, int, int, int]:
    assert storage.address is not None
    row, byte = storage.address
    return storage.region, row, row + storage.shape[0], byte, byte + storage.row_bytes


def _meet(
    a: tuple[MemoryRegion, int, int, int, int], b: tuple[MemoryRegion, int, int, int, int]
) -> bool:
    return a[0] is b[0] and a[1] < b[2] and b[1] < a[2] and a[3] < b[4] and b[3] < a[4]


class _Map:
    """The state of each byte of a storage, and who wrote over it last.

    Attributes:
        states: of each byte, partition by partition.
        owned: some bytes may be `_OWN`.
        spoiler: storage and location of the last write over bytes of this one, None if no byte is
            `_SPOILT`.
    """

    def __init__(self, storage: Storage) -> None:
        assert storage.address is not None
        self.row, self.column = storage.address
        self.states = np.zeros((storage.shape[0], storage.row_bytes), np.uint8)
        self.owned = False
        self.spoiler: tuple[int, int] | None = None
        self._parts: dict[tuple[int, int], Cells | None] = {}

    def part(self, storage: Storage, access: TensorAccess) -> Cells | None:
        """Return the index of those bytes here that an access to some storage touches."""
        key = id(access.form), access.place[1]
        if key not in self._parts:
            self._parts[key] = self._part(*_touched(storage, access))
        return self._parts[key]

    def _part(self, rows: range, columns: Columns) -> Cells | None:
        height, width = self.states.shape
        first = max(rows.start, self.row - (self.row - rows.start) % rows.step)
        while first < self.row:
            first += rows.step
        last = min(rows[-1], self.row + height - 1)
        inside = columns[(columns >= self.column) & (columns < self.column + width)] - self.column
        if first > last or not len(inside):
            return None
        chosen = slice(first - self.row, last - self.row + 1, rows.step)
        begin, end = int(inside[0]), int(inside[-1]) + 1
        whole = end - begin == len(inside)
        return chosen, slice(begin, end) if whole else inside

    def covered(self, index: Cells) -> bool:
        """Return whether an index is that of all bytes."""
        rows, columns = index
        height, width = self.states.shape
        all_rows = len(range(height)[rows]) == height
        return all_rows and isinstance(columns, slice) and columns == slice(0, width)

    def own(self, index: Cells) -> None:
        """Take note that the storage writes some of its bytes."""
        self.states[index] = _OWN
        self.owned = True
        if self.covered(index):
            self.spoiler = None

    def spoil(self, index: Cells, spoiler: tuple[int, int]) -> None:
        """Take note that another storage writes some of the bytes."""
        old = self.states[index]
        hit = old == _OWN
        if hit.any():
            self.states[index] = np.where(hit, _SPOILT, old)
            self.spoiler = spoiler
        if self.covered(index):
            self.owned = False


def _touched(storage: Storage, access: TensorAccess) -> tuple[range, Columns]:
    """Return the rows and bytes within them, in the core's memory, that an access touches."""
    form = access.form
    row, byte = divmod(access.place[1], storage.pitch)
    count, step = form.shape[0], max(1, form.strides[0] // storage.pitch)
    columns: Any = np.array([byte])
    for n, s in zip(form.shape[1:], form.strides[1:], strict=True):
        columns = np.unique(columns[:, None] + s * np.arange(n))
    span = np.arange(info(form.dtype).itemsize)
    return range(row, row + (count - 1) * step + 1, step), np.unique(columns[:, None] + span)


def _read(recording: Recording, maps: dict[int, _Map], access: TensorAccess, name: str) -> None:
    number = access.place[0]
    storage, state = recording.storages[number], maps[number]
    if state.spoiler is None:
        return
    part = state.part(storage, access)
    if part is None or not (state.states[part] == _SPOILT).any():
        return
    other, where = state.spoiler
    file, line = recording.locations[where]
    text = (
        f"{name} {access.leaf.name} reads {storage!r}, but {recording.storages[other]!r} at an "
        f"overlapping address was written meanwhile, at {file}:{line}"
    )
    recording.findings.append((Finding("NKI222", text), recording.locations[access.location]))


def _write(
    recording: Recording,
    maps: dict[int, _Map],
    partners: dict[int, list[int]],
    access: TensorAccess,
) -> None:
    number = access.place[0]
    storage = recording.storages[number]
    own = maps[number].part(storage, access)
    if own is not None:
        maps[number].own(own)
    for other in partners[number]:
        state = maps[other]
        part = state.part(storage, access) if state.owned else None
        if part is not None:
            state.spoil(part, (number, access.location))
