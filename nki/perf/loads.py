"""Loads that a compiler of the first generation does once: what they bring stays on the chip.

Where a kernel loads the same part of an argument again and again, that compiler loads it once and
keeps it, as far as SBUF has room besides: public profiles show the traffic (NKIBench: a weight that
the source loads 32 times is read once, and with tiles of 28 KiB per partition nothing is kept).
It is decided argument by argument, those first that save the most.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nki.checks.capacity import quadrants
from nki.checks.flow import Ints, Times, leaf_roles, starts, written
from nki.core import Core
from nki.memory import MemoryRegion
from nki.recording import Block, Recording, Template, TileForm

__all__ = ["Load", "loads_of", "without_repeated_loads"]

_QUADRANTS = 4


class Load(NamedTuple):
    """A transfer of a part of an argument to a tile of its own.

    Attributes:
        at: where it is in the code.
        tile: number of the storage.
        source: number of the argument.
    """

    at: int
    tile: int
    source: int


def without_repeated_loads(recording: Recording) -> Recording:
    """Return a recording in which what stays on the chip is loaded once.

    Kernels with loops on the device are left as they are: their tiles lie in one place each.
    """
    if recording.body.loops:
        return recording
    groups = [group for group in loads_of(recording) if len(group) > 1]
    if not groups:
        return recording
    room = _Room(recording)
    by_source: dict[int, list[list[Load]]] = {}
    for group in groups:
        by_source.setdefault(group[0].source, []).append(group)
    alias = np.arange(len(recording.storages))
    dropped: list[int] = []

    def saved(source: int) -> int:
        storages = recording.storages
        return -sum(storages[g[0].tile].nbytes * (len(g) - 1) for g in by_source[source])

    for source in sorted(by_source, key=saved):
        chosen = [[load.tile for load in group] for group in by_source[source]]
        if room.keeps(chosen):
            for group in by_source[source]:
                alias[[load.tile for load in group]] = group[0].tile
                dropped += [load.at for load in group[1:]]
    return _rewritten(recording, alias, dropped) if dropped else recording


def loads_of(recording: Recording) -> Iterator[list[Load]]:
    """Iterate over the loads of arguments, those that bring the same in one list, in order.

    Each fills a tile that nothing else writes.
    """
    code, at = _code(recording)
    numbers = code[at]
    arguments = set(recording.inputs) - written(recording)
    writes = np.zeros(len(recording.storages), np.int64)
    for number, template in enumerate(recording.templates):
        for i, leaf in enumerate(leaf_roles(template)):
            if leaf.writes and isinstance(leaf.form, TileForm):
                np.add.at(writes, code[at[numbers == number] + 2 + 2 * i], 1)
    found: dict[tuple[int, int, int], list[Load]] = {}
    for number, template in enumerate(recording.templates):
        if not _is_load(template):
            continue
        for begin in at[numbers == number].tolist():
            tile, _, source, byte = code[begin + 2 : begin + 6].tolist()
            if source in arguments and writes[tile] == 1:
                found.setdefault((number, source, byte), []).append(Load(begin, tile, source))
    yield from found.values()


def _is_load(template: Template) -> bool:
    """Return whether an instruction fills the whole of a tile with a part of HBM."""
    if template.row.name != "dma_copy" or template.hidden or template.words != 4:
        return False
    to, source = template.form("dst"), template.form("src")
    if not (isinstance(to, TileForm) and isinstance(source, TileForm)):
        return False
    whole = template.call.tile("dst").size * template.call.tile("dst").info.itemsize == to.limit
    return to.region is MemoryRegion.sbuf and not to.addressed and whole and (
        not source.region.on_chip
    )  # fmt: skip


def _code(recording: Recording) -> tuple[Ints, Ints]:
    at = starts(recording.body.code, [template.words for template in recording.templates])
    return np.array(recording.body.code, np.int64), at


def _rewritten(recording: Recording, alias: Ints, dropped: list[int]) -> Recording:
    """Return a recording without some instructions, and with other tiles in place of theirs."""
    code, at = _code(recording)
    numbers = code[at]
    kept = np.ones(len(code), bool)
    for number, template in enumerate(recording.templates):
        mine = at[numbers == number]
        for i, leaf in enumerate(leaf_roles(template)):
            if isinstance(leaf.form, TileForm):
                code[mine + 2 + 2 * i] = alias[code[mine + 2 + 2 * i]]
        gone = mine[np.isin(mine, dropped)]
        kept[gone[:, None] + np.arange(2 + template.words)] = False
    places = np.concatenate([[0], np.cumsum(kept)])
    innermost = [(int(places[first]), int(places[end])) for first, end in recording.innermost]
    return replace(recording, body=Block(array("q", code[kept].tobytes())), innermost=innermost)


class _Room:
    """How full SBUF is at each instruction, and what may stay in it longer."""

    def __init__(self, recording: Recording) -> None:
        times = Times(recording, lambda _: 0)
        core = Core(recording.target)
        self._room = core.sbuf.pitch * _QUADRANTS
        self._first, self._last = times.first, times.last
        storages = recording.storages
        self._sizes = np.array([s.row_bytes * quadrants(s) if s.region.on_chip else 0
                                for s in storages])  # fmt: skip
        self._changes = np.zeros(len(times.location) + 1, np.int64)
        for number, storage in enumerate(storages):
            if storage.region is MemoryRegion.sbuf and times.last[number] >= 0:
                self._add(self._changes, number, number, 1)

    def _add(self, changes: Ints, first: int, last: int, sign: int) -> None:
        changes[self._first[first]] += sign * self._sizes[first]
        changes[self._last[last] + 1] -= sign * self._sizes[first]

    def keeps(self, groups: list[list[int]]) -> bool:
        """Let the first tile of each group stay for all of them, if there is room.

        Where groups follow each other there has to be room for them twice: the next ones are
        loaded while these are in use.
        """
        changes = self._changes.copy()
        lasts = [max(tiles, key=lambda t: int(self._last[t])) for tiles in groups]
        ended = min(int(self._last[tile]) for tile in lasts)
        follow = any(int(self._first[tiles[0]]) > ended for tiles in groups)
        needed = changes.copy()
        for tiles, last in zip(groups, lasts, strict=True):
            for tile in tiles:
                self._add(changes, tile, tile, -1)
                self._add(needed, tile, tile, -1)
            self._add(changes, tiles[0], last, 1)
            self._add(needed, tiles[0], last, 2 if follow else 1)
        if int(np.cumsum(needed).max()) > self._room:
            return False
        self._changes = changes
        return True
