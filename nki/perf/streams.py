"""From a recording to a stream: works, cells, and how tiles share the memories on the chip."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neuronxcc.perf.stream import QUEUES, Block, Ints, Loop, Stream, Tile, Work
from neuronxcc.perf.waits import mark
from nki.checks.flow import Leaf, Times, leaf_roles, starts
from nki.core import Core
from nki.errors import NkiError
from nki.isa.spec import Role
from nki.memory import Storage
from nki.perf.buffers import ordered, ranges, reuses, take_over
from nki.perf.cells import Boxes, Cells, boxes_of, cells_of, pitch_of, unique_rows
from nki.perf.invariants import without_invariants
from nki.perf.loads import without_repeated_loads
from nki.perf.near import near_tiles
from nki.perf.reloads import with_reloads
from nki.perf.trips import Shape
from nki.perf.works import choices, columns, is_timed, unpriced, work_of
from nki.recording import Block as Recorded
from nki.recording import Loop as RecordedLoop
from nki.recording import Recording, RegisterForm

__all__ = ["stream_of"]


class _Accesses(NamedTuple):
    """Accesses of one block: instruction, key of what is accessed, and whether it is written."""

    event: list[Ints]
    key: list[Ints]
    writes: list[Ints]


class _Part(NamedTuple):
    """A block as far as it is known before cells are."""

    block: Block
    accesses: _Accesses


def stream_of(
    recording: Recording, *, compiled: bool = False, shape: Shape | None = None
) -> Stream:
    """Return what a recording asks a core to do.

    Args:
        recording: of a kernel.
        compiled: a compiler orders what each engine does, keeps what it has loaded, and chooses
            the engines that the kernel leaves open, the less busy one each time; else they are
            those of the recording.
        shape: how often the loops run, where values of the run say so; see `nki.perf.trips`.

    Raises:
        NkiError: how often a loop runs is not known before it runs, and no shape is given (NKI330).
    """
    if compiled:
        recording = with_reloads(without_invariants(without_repeated_loads(recording)))
    return _Adapter(recording, compiled).stream(shape)


class _Adapter:
    def __init__(self, recording: Recording, chooses: bool) -> None:
        self._recording = recording
        self._chooses = chooses
        self._templates = recording.templates
        self._words = [template.words for template in recording.templates]
        self._leaves: list[tuple[Leaf, ...]] = [leaf_roles(t) for t in recording.templates]
        self._works: dict[Work, int] = {}
        self._chosen = [
            [self._number(work_of(t, name)) for name in (choices(t) if chooses else (None,))]
            if is_timed(t)
            else []
            for t in recording.templates
        ]
        self._begins: dict[int, Ints] = {}  # by id of a block
        # What a block became, and where its loops stand; and the same with its loops, by shape.
        self._made: dict[int, tuple[Block, list[tuple[int, RecordedLoop]]]] = {}
        self._known_loops: dict[tuple[int, Shape | None], Block] = {}
        self._load = [0.0] * len(QUEUES)
        storages = recording.storages
        self._count = len(storages)
        self._pitch = np.array([pitch_of(s) for s in storages] or [1], np.int64)
        self._whole = np.array(
            [s.nbytes if s.address is None else s.memory.partitions * s.pitch for s in storages]
            or [1],
            np.int64,
        )
        self._owner = np.zeros(max(1, self._count), np.int64)  # the core whose tile it is
        nobody = np.zeros(max(1, self._count), bool)
        self._near = near_tiles(recording, self._leaves, self._groups) if chooses else nobody
        self._tracked = self._who_is_tracked()
        self._memory = self._memories()
        self._keys: list[tuple[int, int, Ints, Ints]] = []  # template, leaf, storages, bytes
        self._known = 0

    def _number(self, work: Work) -> int:
        return self._works.setdefault(work, len(self._works))

    # --- memories --------------------------------------------------------------------------------

    def _who_is_tracked(self) -> np.ndarray:
        """Return by storage whether some instruction reads and another one writes it."""
        read, write = (np.zeros(max(1, self._count), bool) for _ in range(2))
        blocks = [self._recording.body]
        while blocks:
            block = blocks.pop()
            blocks += [loop.body for loop in block.loops]
            for template, _, words in self._groups(block):
                for i, leaf in enumerate(self._leaves[template]):
                    if not isinstance(leaf.form, RegisterForm):
                        used = words[:, 2 * i]
                        if leaf.reads or leaf.role is Role.READWRITE:
                            read[used] = True
                        if leaf.writes:
                            write[used] = True
        return read & write

    def _memories(self) -> Ints:
        """Return by storage what its places count in: itself, or the memory of its core."""
        found = np.arange(max(1, self._count))
        cores: dict[int, int] = {}
        for number, storage in enumerate(self._recording.storages):
            if storage.address is not None:
                found[number] = self._count + cores.setdefault(id(storage.memory), len(cores))
        self._registers = self._count + len(cores)
        return found

    def _starts(self, block: Recorded) -> Ints:
        """Return where the instructions of a block begin."""
        known = self._begins.get(id(block))
        if known is None:
            known = self._begins[id(block)] = starts(block.code, self._words)
        return known

    # --- blocks ----------------------------------------------------------------------------------

    def _groups(self, block: Recorded) -> list[tuple[int, Ints, Ints]]:
        """Return for each template that is timed its instructions in a block, and their places.

        Instructions are counted without those that are not timed, and without loops.
        """
        at = self._starts(block)
        if not len(at):
            return []
        code = np.frombuffer(block.code, np.int64)
        numbers = code[at]
        timed = np.array([*(bool(chosen) for chosen in self._chosen), False])[numbers]
        at, numbers = at[timed], numbers[timed]
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        made = []
        for chosen in np.split(order, cuts) if len(order) else ():
            template = int(numbers[chosen[0]])
            words = at[chosen][:, None] + 2 + np.arange(self._words[template])
            made.append((template, chosen, code[words]))
        return made

    def _block(self, block: Recorded) -> list[_Part]:
        """Return what is known of a block and of all blocks within it, without their loops."""
        at = self._starts(block)
        code = np.frombuffer(block.code, np.int64) if len(at) else np.zeros(0, np.int64)
        numbers = code[at]
        timed = np.array([*(bool(chosen) for chosen in self._chosen), False])[numbers]
        made = Block(work=np.zeros(int(timed.sum()), np.int64), line=code[at[timed] + 1])
        accesses = _Accesses([], [], [])
        used = [np.zeros((0, 2), np.int64)]
        for template, events, words in self._groups(block):
            made.work[events] = self._chosen[template][0]
            self._bring_near(made, template, events, words)
            for i, leaf in enumerate(self._leaves[template]):
                self._access(template, i, leaf, events, words, accesses)
                if not isinstance(leaf.form, RegisterForm) and leaf.form.region.on_chip:
                    used.append(np.stack([words[:, 2 * i], events], 1))
                    self._owner[words[:, 2 * i]] = self._templates[template].core
        made.touch, made.tile = _touches(np.concatenate(used))
        self._assign(made)
        parts: list[_Part] = []
        before = np.cumsum(timed)
        inner: list[tuple[int, RecordedLoop]] = []
        for i in np.flatnonzero(numbers < 0).tolist():
            loop = block.loops[code[at[i] + 1]]
            parts += self._block(loop.body)
            inner.append((int(before[i]), loop))
        self._made[id(block)] = made, inner
        return [_Part(made, accesses), *parts]

    def _access(
        self,
        template: int,
        number: int,
        leaf: Leaf,
        events: Ints,
        words: Ints,
        accesses: _Accesses,
    ) -> None:
        """Take note of what one leaf of the instructions of a template accesses."""
        storages, bytes_ = words[:, 2 * number], words[:, 2 * number + 1]
        if not isinstance(leaf.form, RegisterForm):
            kept = self._tracked[storages]
            events, storages, bytes_ = events[kept], storages[kept], bytes_[kept]
        if not len(events):
            return
        keys = self._known + np.arange(len(events))
        self._known += len(events)
        self._keys.append((template, number, storages, bytes_))
        accesses.event.append(events)
        accesses.key.append(keys)
        accesses.writes.append(np.full(len(events), int(leaf.writes)))
        if leaf.writes and leaf.reads:
            accesses.event.append(events)
            accesses.key.append(keys)
            accesses.writes.append(np.zeros(len(events), np.int64))

    def _bring_near(self, made: Block, template: int, events: Ints, words: Ints) -> None:
        """Let instructions read from PSUM what a compiler keeps there."""
        if self._templates[template].row.name != "tensor_tensor":
            return
        names = [leaf.name for leaf in self._leaves[template]]
        single = columns(self._templates[template]) if self._chooses else ()
        for name in ("data1", "data2"):
            there = self._near[words[:, 2 * names.index(name)]] | (name in single)
            if there.any():
                work = work_of(self._templates[template], near=frozenset({name}))
                made.work[events[there]] = self._number(work)

    def _assign(self, made: Block) -> None:
        """Let the less busy engine run what several may."""
        open_ = {i: works for i, works in enumerate(self._chosen) if len(works) > 1}
        if not open_:
            return
        listed = list(self._works)
        owner = {works[0]: works for works in open_.values()}
        for i, number in enumerate(made.work.tolist()):
            best = min(
                owner.get(number, (number,)),
                key=lambda w: self._load[listed[w].queue] + listed[w].cycles,
            )
            made.work[i] = best
            self._load[listed[best].queue] += listed[best].cycles

    # --- all together ----------------------------------------------------------------------------

    def stream(self, shape: Shape | None) -> Stream:
        """Return the stream."""
        recording = self._recording
        parts = self._block(recording.body)
        unique, cells = self._cells()
        for part in parts:
            self._finish(part, unique, cells)
        made = Stream(recording.name, [], recording.locations)
        made.notes = self._notes()
        made.listed = self._chooses
        made.tiles = self._tiles()
        self._share(parts, cells)
        for part in parts:
            mark(part.block, self._works)
        made.works = list(self._works)
        made.body = self._looped(recording.body, shape)
        return made

    def _tiles(self) -> list[Tile]:
        """Return what shows of the storages; those that are alike are one object."""
        known: dict[tuple[object, ...], Tile] = {}
        found = []
        for storage, core in zip(self._recording.storages, self._owner.tolist(), strict=False):
            key = storage.name, storage.region, storage.dtype, storage.shape, core
            tile = known.get(key)
            if tile is None:
                tile = known[key] = _tile(storage, core)
            found.append(tile)
        return found

    def _looped(self, block: Recorded, shape: Shape | None) -> Block:
        """Return what a block became, with its loops."""
        key = id(block), shape
        if key in self._known_loops:
            return self._known_loops[key]
        made, inner = self._made[id(block)]
        loops = []
        for number, (at, loop) in enumerate(inner):
            turns = (
                ((_trips(loop, self._recording), None),) if shape is None else shape[number]
            )  # fmt: skip
            loops += [(at, Loop(count, self._looped(loop.body, each))) for count, each in turns]
        found = self._known_loops[key] = replace(made, loops=loops)
        return found

    def _cells(self) -> tuple[Ints, Cells]:
        """Return for each access the number of its box, and the cells of boxes."""
        rows = [np.zeros((0, 5), np.int64)]
        for template, number, storages, bytes_ in self._keys:
            form = self._leaves[template][number].form
            register = isinstance(form, RegisterForm)
            memory = self._registers + storages if register else self._memory[storages]
            box = boxes_of(form, storages, bytes_, self._pitch, self._whole)
            rows.append(np.stack([memory, *box], 1))
        table = np.concatenate(rows)
        boxes, inverse = unique_rows(table)
        return inverse, cells_of(Boxes(*boxes.T))

    def _finish(self, part: _Part, unique: Ints, cells: Cells) -> None:
        """Put the accesses of a block into it."""
        block, accesses = part.block, part.accesses
        if not accesses.event:
            return
        event = np.concatenate(accesses.event)
        box = unique[np.concatenate(accesses.key)]
        writes = np.concatenate(accesses.writes)
        begin, end = cells.first[box], cells.first[box + 1]
        sizes = end - begin
        block.event = np.repeat(event, sizes)
        block.cell = cells.cell[ranges(begin, end)]
        block.writes = np.repeat(writes, sizes)
        ordered(block)

    def _share(self, parts: list[_Part], cells: Cells) -> None:
        """Let tiles that do not fit side by side wait for each other's memory."""
        recording = self._recording
        times = Times(recording, lambda number: recording.storages[number].depth)
        pairs = np.array(reuses(recording, times, Core(recording.target)), np.int64)
        if not len(pairs):
            return
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        # Only what is both read and written has cells.
        at = np.searchsorted(cells.memory, pairs[:, 1])
        known = cells.memory[np.minimum(at, len(cells.memory) - 1)] == pairs[:, 1]
        pairs, at = pairs[known], at[known]
        new = np.searchsorted(cells.memory, pairs[:, 0])
        known = cells.memory[np.minimum(new, len(cells.memory) - 1)] == pairs[:, 0]
        take_over([part.block for part in parts], cells, new[known], at[known])

    def _notes(self) -> list[str]:
        names = {t.row.name for t in self._templates if is_timed(t)}
        found = sorted({t.row.name for t in self._templates if is_timed(t) and unpriced(t)})
        notes = []
        if found:
            notes.append(
                f"no cost is published of {', '.join(found)}: one cycle for each element of a "
                "partition is taken, at least 64"
            )
        if names & {"combine", "counted_copy"} or self._recording.cores > 1:
            notes.append("what cores exchange is timed as copies, and meeting costs nothing")
        return notes


def _touches(used: Ints) -> tuple[Ints, Ints]:
    """Return the first and the last use of each tile of a block: instructions, and tiles.

    Args:
        used: tile and instruction of every use.
    """
    used = used[np.lexsort((used[:, 1], used[:, 0]))]
    new = np.append(True, used[1:, 0] != used[:-1, 0])[: len(used)]
    ends = used[new | np.append(new[1:], True)[: len(used)]]
    ends = ends[np.argsort(ends[:, 1], kind="stable")]
    return ends[:, 1], ends[:, 0]


def _tile(storage: Storage, core: int) -> Tile:
    """Return what shows of a storage; only of those on the chip it is looked at."""
    if not storage.region.on_chip:
        return Tile(storage.name, "hbm", 0, 0)
    name = storage.name or f"{storage.dtype}{list(storage.shape)}"
    return Tile(name, storage.region.name, storage.shape[0], storage.row_bytes, core)


def _trips(loop: RecordedLoop, recording: Recording) -> int:
    """Return how often a loop runs.

    Raises:
        NkiError: a value of the run says so (NKI330).
    """
    if loop.kind == "for" and isinstance(loop.lower, int) and isinstance(loop.upper, int):
        return len(range(loop.lower, loop.upper, loop.step))
    raise NkiError(
        "NKI330",
        "how often a loop runs depends on a value that only a run of the kernel knows",
        "time it with its arguments: nki.perf.predict(kernel, *arguments)",
        recording.locations[loop.location],
    )
