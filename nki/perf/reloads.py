"""What a compiler of the first generation moves besides, where SBUF is too small for a kernel.

Where the tiles in use do not fit, the one goes whose next use is farthest away, which a compiler
knows, and comes back for it. What an argument's tile holds is in HBM anyway, and is loaded again;
what was computed is spilled: stored in HBM, and loaded from there.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from nki.checks.capacity import quadrants
from nki.checks.flow import Ints, Times, leaf_roles, starts
from nki.core import Core
from nki.dtypes import info
from nki.isa.spec import Call, Tile
from nki.isa.table import TABLE
from nki.memory import MemoryRegion, Storage
from nki.pattern import contiguous
from nki.perf.loads import loads_of
from nki.perf.works import SPILL
from nki.recording import Block, Recording, Template, TileForm

__all__ = ["with_reloads"]

_QUADRANTS = 4
_HBM = MemoryRegion.private_hbm
_LOAD_WORDS = 6  # template, line, and the places of both sides


def with_reloads(recording: Recording) -> Recording:
    """Return a recording in which tiles that find no room are loaded again.

    Kernels with loops on the device are left as they are: their tiles lie in one place each.
    """
    if recording.body.loops:
        return recording
    times = Times(recording, lambda _: 0)
    storages = recording.storages
    sizes = np.array(
        [s.row_bytes * quadrants(s) if s.region is MemoryRegion.sbuf else 0 for s in storages],
        np.int64,
    )
    used = np.flatnonzero((sizes > 0) & (times.last >= 0))
    changes = np.zeros(len(times.location) + 1, np.int64)
    np.add.at(changes, times.first[used], sizes[used])
    np.add.at(changes, times.last[used] + 1, -sizes[used])
    room = Core(recording.target).sbuf.pitch * _QUADRANTS
    if not len(used) or int(np.cumsum(changes).max()) <= room:
        return recording
    return _Reloads(recording, times, sizes, room).rewritten()


class _Reloads:
    """Goes through a program once, with SBUF as far as it reaches.

    Attributes:
        inside: tiles that are there, and their room.
        uses: of each tile the instructions that use it, from the last one to the next one.
        heap: of tiles that are there, by their next use, the farthest first; old entries are left.
        full: what all of them take.
        now: what stands for a tile that came back.
        kept: of a tile that was spilled, the memory in HBM that holds it as it is now.
        unused: of a tile that nothing has used since it was loaded, where its load is.
        moved: loads that were for nothing: others are in their place, at the first use.
    """

    def __init__(self, recording: Recording, times: Times, sizes: Ints, room: int) -> None:
        self._recording = recording
        self._sizes = sizes.tolist()
        self._room = room
        self._last = times.last.tolist()
        self._loads = {load.tile: load.at for group in loads_of(recording) for load in group}
        self._storages = list(recording.storages)
        self._templates = list(recording.templates)
        self._transfers: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        self._code = array("q")
        self.inside: dict[int, int] = {}
        self.uses: dict[int, list[int]] = {}
        self.heap: list[tuple[int, int]] = []
        self.full = 0
        self.now: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.unused: dict[int, int] = {}
        self.moved: list[int] = []

    def rewritten(self) -> Recording:
        """Return the program with what it moves besides."""
        templates = self._recording.templates
        tiles = [
            [
                (2 + 2 * i, leaf.writes)
                for i, leaf in enumerate(leaf_roles(template))
                if isinstance(leaf.form, TileForm) and not template.hidden
            ]
            for template in templates
        ]
        old = self._recording.body.code
        at = starts(old, [template.words for template in templates]).tolist()
        self._look_ahead(old, at, tiles)
        for time, begin in enumerate(at):
            event = old[begin : begin + 2 + templates[old[begin]].words]
            places = [(p, writes) for p, writes in tiles[old[begin]] if self._sizes[event[p]]]
            for place, _ in places:
                self._use(event[place], begin, event[1], keep={event[p] for p, _ in places})
            for place, _ in places:
                self._used(event[place], time)
            for place, writes in places:
                tile = event[place]
                event[place] = self.now.get(tile, tile)
                if writes:
                    self.kept.pop(tile, None)
                if self._last[tile] <= time and tile in self.inside:
                    self.full -= self.inside.pop(tile)
                if self._loads.get(tile) == begin:
                    self.unused[tile] = len(self._code)
                else:
                    self.unused.pop(tile, None)
            self._code += event
        for load in sorted(self.moved, reverse=True):
            del self._code[load : load + _LOAD_WORDS]
        body = Block(self._code)
        return replace(
            self._recording, body=body, storages=self._storages, templates=self._templates
        )

    def _look_ahead(
        self, code: array[int], at: list[int], tiles: list[list[tuple[int, bool]]]
    ) -> None:
        """Take note of all uses of tiles, from the last one to the first."""
        for time in range(len(at) - 1, -1, -1):
            begin = at[time]
            for place, _ in tiles[code[begin]]:
                tile = code[begin + place]
                if self._sizes[tile]:
                    self.uses.setdefault(tile, []).append(time)

    def _use(self, tile: int, begin: int, line: int, keep: set[int]) -> None:
        """Make sure that a tile is there when an instruction uses it."""
        if tile in self.inside:
            return
        size = self._sizes[tile]
        if self.full + size > self._room:
            self._make_room(size, line, keep)
        load = self._loads.get(tile)
        if load is not None and load != begin:
            # Of a load the first place is what it fills.
            event = self._recording.body.code[load : load + _LOAD_WORDS]
            event[2] = self._another(tile)
            self._code += event
        elif tile in self.kept:
            source = self.kept[tile]
            back = self._transfer(tile)[1]
            self._code.extend((back, line, self._another(tile), 0, source, 0))
        self.inside[tile] = size
        self.full += size

    def _used(self, tile: int, time: int) -> None:
        """Take note of when a tile is used next."""
        left = self.uses[tile]
        while left and left[-1] <= time:
            left.pop()
        if left and tile in self.inside:
            heappush(self.heap, (-left[-1], tile))

    def _make_room(self, size: int, line: int, keep: set[int]) -> None:
        """Let tiles go, those first whose next use is farthest away."""
        kept: list[tuple[int, int]] = []
        while self.heap and self.full + size > self._room:
            next_use, gone = heappop(self.heap)
            left = self.uses[gone]
            if gone not in self.inside or not left or -next_use != left[-1]:
                continue
            if gone in keep:
                kept.append((next_use, gone))
                continue
            self.full -= self.inside.pop(gone)
            if gone in self.unused:
                self.moved.append(self.unused.pop(gone))
            elif gone not in self._loads and gone not in self.kept:
                self.kept[gone] = self._memory(gone)
                there = self._transfer(gone)[0]
                tile = self.now.get(gone, gone)
                self._code.extend((there, line, self.kept[gone], 0, tile, 0))
        for entry in kept:
            heappush(self.heap, entry)

    def _another(self, tile: int) -> int:
        """Return the number of a new tile that stands for one from now on."""
        self._storages.append(self._storages[tile].another(self._storages[tile].name, 0))
        self.now[tile] = len(self._storages) - 1
        return self.now[tile]

    def _memory(self, tile: int) -> int:
        """Return the number of new memory in HBM for a tile."""
        old = self._storages[tile]
        made = Storage(MemoryRegion.private_hbm, old.dtype, old.shape, core=old.core, spills=False)
        self._storages.append(made)
        return len(self._storages) - 1

    def _transfer(self, tile: int) -> tuple[int, int]:
        """Return the numbers of the instructions that take tiles like one to HBM and back."""
        storage = self._storages[tile]
        key = storage.dtype, storage.shape
        found = self._transfers.get(key)
        if found is None:
            chip, hbm = (_form(storage, region) for region in (storage.region, _HBM))
            found = self._transfers[key] = len(self._templates), len(self._templates) + 1
            generation = self._recording.target.core.isa
            self._templates += [_copy(hbm, chip, generation), _copy(chip, hbm, generation)]
        return found


def _form(storage: Storage, region: MemoryRegion) -> TileForm:
    """Return the form of all of a tile, in SBUF or in HBM."""
    p = contiguous(storage.dtype, storage.shape, partition=region.on_chip)
    strides = tuple(stride * info(p.dtype).itemsize for stride in p.strides)
    row = storage.row_bytes if region.on_chip else storage.nbytes
    return TileForm(
        p, strides, region, 0, storage.nbytes, addressed=False, row_bytes=row, indirect=None
    )


def _copy(dst: TileForm, src: TileForm, generation: int) -> Template:
    """Return the instruction that copies one to the other for want of room."""
    row = TABLE["dma_copy"]
    tiles = {"dst": dst, "src": src}
    operands = {n: Tile(form.shape, form.dtype, form.region.name) for n, form in tiles.items()}
    attributes = {a.name: a.default for a in row.attributes}
    call = Call(row, operands, attributes, generation, "dma")
    marked = {**attributes, SPILL: True}
    return Template(row, tuple(tiles.items()), marked, call, words=4)
