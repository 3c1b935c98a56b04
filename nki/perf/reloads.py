"""Loads that a compiler of the first generation does again, because SBUF is full meanwhile.

Where the tiles in use do not fit, what an argument's tile holds is in HBM anyway. So such a tile
goes as soon as others need its room, the one first whose last use is longest ago, and is loaded
again for its next use. In NKIBench's product of 4096 x 5120 x 12288 that is 32 loads of the weight,
which the profile shows, where the source has one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from nki.checks.capacity import quadrants
from nki.checks.flow import Ints, Times, leaf_roles, starts
from nki.core import Core
from nki.memory import MemoryRegion
from nki.perf.loads import loads_of
from nki.recording import Block, Recording, TileForm

__all__ = ["with_reloads"]

_QUADRANTS = 4
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
    def __init__(self, recording: Recording, times: Times, sizes: Ints, room: int) -> None:
        self._recording = recording
        self._sizes = sizes.tolist()
        self._room = room
        self._last = times.last.tolist()
        self._loads = {load.tile: load.at for group in loads_of(recording) for load in group}
        self._storages = list(recording.storages)
        self._inside: OrderedDict[int, int] = OrderedDict()  # tiles, and their room
        self._full = 0
        self._now: dict[int, int] = {}  # what stands for a tile that was loaded again
        # Where the load of a tile is that nothing has used since, and where those are that
        # nothing ever will: they are moved to the first use.
        self._unused: dict[int, int] = {}
        self._moved: list[int] = []

    def rewritten(self) -> Recording:
        """Go through the program once."""
        templates = self._recording.templates
        tiles = [
            [2 + 2 * i for i, leaf in enumerate(leaf_roles(t)) if isinstance(leaf.form, TileForm)]
            for t in templates
        ]
        old = self._recording.body.code
        at = starts(old, [template.words for template in templates])
        code = array("q")
        for time, begin in enumerate(at.tolist()):
            event = old[begin : begin + 2 + templates[old[begin]].words]
            places = [p for p in tiles[old[begin]] if self._sizes[event[p]]]
            for place in places:
                self._use(event[place], begin, code, keep={event[p] for p in places})
            for place in places:
                tile = event[place]
                event[place] = self._now.get(tile, tile)
                if self._last[tile] <= time and tile in self._inside:
                    self._full -= self._inside.pop(tile)
                if self._loads.get(tile) == begin:
                    self._unused[tile] = len(code)
                else:
                    self._unused.pop(tile, None)
            code += event
        for at_load in sorted(self._moved, reverse=True):
            del code[at_load : at_load + _LOAD_WORDS]
        return replace(self._recording, body=Block(code), storages=self._storages)

    def _use(self, tile: int, begin: int, code: array[int], keep: set[int]) -> None:
        """Make sure that a tile is there when an instruction uses it."""
        if tile in self._inside:
            self._inside.move_to_end(tile)
            return
        size = self._sizes[tile]
        load = self._loads.get(tile)
        if load is not None and load != begin:
            self._again(tile, load, code)
        old = [t for t in self._inside if t in self._loads and t not in keep]
        for gone in old if self._full + size > self._room else ():
            self._full -= self._inside.pop(gone)
            if gone in self._unused:
                self._moved.append(self._unused.pop(gone))
            if self._full + size <= self._room:
                break
        self._inside[tile] = size
        self._full += size

    def _again(self, tile: int, load: int, code: array[int]) -> None:
        """Load a tile to a new one."""
        made = len(self._storages)
        self._storages.append(self._storages[tile].another(self._storages[tile].name))
        self._now[tile] = made
        # Of a load the first place is what it fills.
        event = self._recording.body.code[load : load + _LOAD_WORDS]
        event[2] = made
        code += event
