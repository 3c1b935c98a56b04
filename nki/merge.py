"""Several cores' recordings as one.

Each core of a launch is recorded on its own. Here their recordings become one, in which a single
executor does what the cores do side by side: what lies between two synchronisation points
(`sendrecv`, `core_barrier`, collectives) is put core after core, and an exchange becomes copies
and sums between the cores' tensors.

- Tensors in shared HBM are shared by the two cores of a logical core: the n-th that either creates,
  arguments included, is one and the same. Everything else is each core's own.
- A synchronisation point happens when all who take part in it have arrived.
- Loops on the device that contain one are merged body by body; they must agree in kind, bounds and
  step. Where a bound is a register, that of the first core counts. Other loops stay each core's.
- The two cores of a logical core have the same loops, as the hardware needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from nki.checks.flow import Leaf
from nki.checks.races import Races, Touch
from nki.errors import NkiError
from nki.isa.table import HIDDEN
from nki.merging.members import Arrival, Roster
from nki.merging.shared import Fill, SharedMemory, match_shared
from nki.merging.source import Rewritten, Source
from nki.merging.structure import check_structure, different, header
from nki.merging.syncs import SYNCS
from nki.merging.values import Values
from nki.merging.writer import Writer
from nki.recorder import Recorder
from nki.recording import Block, Loop, Recording, Result
from nki.tensor import NkiTensor
from nki.trees import leaves

__all__ = ["merge"]


def merge(recorders: Sequence[Recorder]) -> Recording:
    """Return what all the cores of a launch did, in an order that keeps their exchanges.

    Args:
        recorders: by lane: core after core, rank after rank.

    Raises:
        NkiError: the cores do not fit each other (NKI300 to NKI303, NKI319).
    """
    first = recorders[0]
    rows = {template.row.name for template in first.recording.templates}
    if len(recorders) == 1 and not rows & SYNCS.keys():
        return first.recording
    return _Merge(recorders).result()


@dataclass(slots=True)
class _Stop:
    """Where a participant leaves its straight line.

    Attributes:
        end: position in the block's code after it.
        arrival: an event at which cores meet, or None.
        loop: a loop, or None.
        lanes: who must be here to go on; of a loop that concerns nobody else, nobody.
    """

    end: int
    arrival: Arrival | None = None
    loop: Loop | None = None
    lanes: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Cursor:
    """How far a participant has come in a block.

    Attributes:
        source: the participant.
        code: the block.
        stops: begin of each stop in the code, and the stop.
        at: position in the code.
        next: number of the next stop.
    """

    source: Source
    code: Rewritten
    stops: list[tuple[int, _Stop]] = field(default_factory=list)
    at: int = 0
    next: int = 0

    def stop(self) -> _Stop | None:
        """Return where the participant waits, None at the end."""
        return self.stops[self.next][1] if self.next < len(self.stops) else None

    def proceed(self) -> None:
        """Leave the stop."""
        self.at = self.stops[self.next][1].end
        self.next += 1


class _Merge:
    """Merges once.

    Attributes:
        quiet: bodies of loops are gone through again, only to look for races.
        surely: what is looked at runs in every run of the program.
        created: ids of the shared storages that were filled when they were created.
    """

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        first = recorders[0]
        self.roster = Roster(first.cores, first.ranks)
        self.writer = Writer(first.recording.name, first.recording.target)
        shared = match_shared(recorders)
        self.sources: list[Source] = []
        registers = 0
        for recorder in recorders:
            self.sources.append(Source(recorder, self.writer, shared, registers))
            registers += recorder.recording.registers
        self.writer.recording.registers = registers
        self.races = [
            Races(partial(self._values, self.sources[i : i + first.cores]))
            for i in range(0, len(self.sources), first.cores)
        ]
        self._known: dict[int, Values] = {}
        self.touching = [source.touching_shared() for source in self.sources]
        self.memory = SharedMemory()
        self.quiet = False
        self.surely = True
        self.created: set[int] = set()

    def result(self) -> Recording:
        """Merge."""
        made, cores = self.writer.recording, self.roster.cores
        if cores > 1:
            for lane in range(0, len(self.sources), cores):
                check_structure(self.sources[lane], self.sources[lane + 1])
        self.root = made.body
        self._blocks({source.lane: source.recording.body for source in self.sources}, made.body)
        for races in self.races:
            races.meet()
        made.cores = len(self.sources)
        for source in self.sources:
            recording = source.recording
            made.findings += recording.findings
            made.peeked |= recording.peeked
            made.constants += [source.number(n) for n in recording.constants]
            if source.lane % cores == 0:
                made.inputs += [source.number(n) for n in recording.inputs]
        heads = self.sources[::cores]
        for head in heads if cores > 1 else ():
            self._returned(head)
        made.findings += self.memory.findings
        made.findings += [finding for races in self.races for finding in races.findings]
        results = [source.results(source.recording.results) for source in heads]
        made.results = results if self.roster.ranks > 1 else results[0]
        return made

    # --- blocks --------------------------------------------------------------------------------

    def _blocks(self, blocks: Mapping[int, Block], out: Block) -> None:
        """Append the merged blocks of some participants."""
        cursors = {lane: self._cursor(self.sources[lane], block) for lane, block in blocks.items()}
        while True:
            for cursor in cursors.values():
                self._advance(cursor, out)
            waiting = {lane: c.stop() for lane, c in cursors.items() if c.stop() is not None}
            if not waiting:
                return
            for lane, stop in waiting.items():
                assert stop is not None
                if self._meets(lane, stop, cursors, out):
                    break
            else:
                raise self._deadlock(cursors)

    def _cursor(self, source: Source, block: Block) -> _Cursor:
        cursor = _Cursor(source, source.rewrite(block))
        templates = source.recording.templates
        # The last one stands for loops, whose number is -1.
        syncs = np.array([*(t.row.name in SYNCS for t in templates), True], np.bool_)
        at = cursor.code.at
        for begin in at[syncs[cursor.code.numbers]].tolist():
            cursor.stops.append((begin, self._stop(source, block, begin)))
        return cursor

    def _stop(self, source: Source, block: Block, begin: int) -> _Stop:
        if block.code[begin] < 0:
            loop = block.loops[block.code[begin + 1]]
            return _Stop(begin + 2, loop=loop, lanes=self._lanes_of(source, loop))
        arrival = Arrival(source, source.event(block.code, begin))
        lanes = SYNCS[arrival.name].lanes(self.roster, arrival)
        return _Stop(begin + 2 + arrival.event.template.words, arrival, lanes=lanes)

    def _lanes_of(self, source: Source, loop: Loop) -> frozenset[int]:
        """Return who must take part in a loop: everybody who meets in it."""
        cursor = self._cursor(source, loop.body)
        return frozenset(lane for _, stop in cursor.stops for lane in stop.lanes)

    def _advance(self, cursor: _Cursor, out: Block) -> None:
        """Append what a participant does until it must wait."""
        while True:
            end = cursor.stops[cursor.next][0] if cursor.stop() else len(cursor.code.code)
            self._segment(cursor, end, out)
            stop = cursor.stop()
            if stop is None or stop.loop is None or stop.lanes:
                return
            source, loop = cursor.source, stop.loop
            with self._inside(loop):
                self._look(source, loop.body)
            if not self.quiet:
                _append(out, source.loop(loop, source.whole(loop.body)))
            cursor.proceed()

    def _segment(self, cursor: _Cursor, end: int, out: Block) -> None:
        if end == cursor.at:
            return
        self._watch(cursor.source, cursor.code, cursor.at, end)
        if not self.quiet:
            out.code.frombytes(cursor.code.code[cursor.at : end].tobytes())
        cursor.at = end

    # --- meeting -------------------------------------------------------------------------------

    def _meets(
        self, lane: int, stop: _Stop, cursors: Mapping[int, _Cursor], out: Block
    ) -> bool:  # fmt: skip
        """Let a participant and all whom it waits for meet, if all are here."""
        others = sorted(stop.lanes | {lane})
        stops = [cursors[other].stop() if other in cursors else None for other in others]
        arrived = [s for s in stops if s is not None and s.lanes == stop.lanes]
        if len(arrived) != len(others):
            return False
        if stop.loop is not None:
            if any(s.loop is None for s in arrived):
                return False
            self._merged_loop(others, [s.loop for s in arrived if s.loop is not None], out)
        else:
            arrivals = [s.arrival for s in arrived if s.arrival is not None]
            if len(arrivals) != len(others):
                return False
            sync = SYNCS[arrivals[0].name]
            if not sync.together(arrivals):
                return False
            self._order(others)
            sync.check(self.roster, arrivals)
            if not self.quiet:
                sync.write(self.roster, arrivals, self.writer, out)
        for other in others:
            cursor = cursors[other]
            # What a barrier is given says what it is for; it reads nothing of it.
            moves = stop.arrival is not None and stop.arrival.name != "core_barrier"
            if moves and self.roster.cores > 1:
                self._use(cursor.source, cursor.code, cursor.at)
            cursor.proceed()
        return True

    def _order(self, lanes: Sequence[int]) -> None:
        """Take note that participants have met: what they did before is over."""
        cores = self.roster.cores
        for rank in {lane // cores for lane in lanes}:
            if all(rank * cores + core in lanes for core in range(cores)):
                self.races[rank].meet()

    def _merged_loop(self, lanes: Sequence[int], loops: Sequence[Loop], out: Block) -> None:
        first = self.sources[lanes[0]]
        for lane, loop in zip(lanes[1:], loops[1:], strict=True):
            if header(loop) != header(loops[0]):
                raise different(first, loops[0], self.sources[lane], loop)
        body = Block()
        blocks = {lane: loop.body for lane, loop in zip(lanes, loops, strict=True)}
        with self._inside(loops[0]):
            self._blocks(blocks, body)
            # The end of an iteration meets the beginning of the next one.
            before, self.quiet = self.quiet, True
            self._blocks(blocks, body)
            self.quiet = before
        if self.quiet:
            return
        made = first.loop(loops[0], body)
        made.counters = tuple(
            counter + self.sources[lane].registers
            for lane, loop in zip(lanes, loops, strict=True)
            for counter in loop.counters
        )
        _append(out, made)

    @contextmanager
    def _inside(self, loop: Loop) -> Iterator[None]:
        """Take note that what follows is the body of a loop, which may not run."""
        before, lower, upper = self.surely, loop.lower, loop.upper
        runs = isinstance(lower, int) and isinstance(upper, int) and lower < upper
        self.surely = before and runs
        yield
        self.surely = before

    def _deadlock(self, cursors: Mapping[int, _Cursor]) -> NkiError:
        """Return the error for participants none of whom can go on."""
        lane, stop = next((lane, c.stop()) for lane, c in cursors.items() if c.stop() is not None)
        assert stop is not None
        who = self.roster.name(lane)
        for other in sorted(stop.lanes - {lane}):
            cursor = cursors.get(other)
            there = cursor.stop() if cursor is not None else None
            if there is not None and there.lanes == stop.lanes and _alike(stop, there):
                continue
            peer = self.roster.name(other)
            if there is None:
                doing = f"{peer} does not come to one"
            else:
                file, line = _where(self.sources[other], there)
                doing = f"{peer} is at {_called(there)} at {file}:{line}"
            break
        else:
            doing = "the others do not come to it"
        return NkiError(
            "NKI302",
            f"{who} waits at {_called(stop)}, and {doing}",
            "let all cores that take part issue the same exchanges in the same order"
            if self.roster.lanes > 1
            else "launch the kernel with kernel[2], or on several ranks with nki.collectives.spmd",
            _where(self.sources[lane], stop),
        )

    # --- shared memory -------------------------------------------------------------------------

    def _look(self, source: Source, block: Block) -> None:
        """Watch a block, loops included."""
        code = source.rewrite(block)
        self._watch(source, code, 0, len(code.code))
        for loop in block.loops:
            with self._inside(loop):
                self._look(source, loop.body)

    def _watch(self, source: Source, code: Rewritten, begin: int, end: int) -> None:
        """Look at the accesses to shared HBM in a part of a block."""
        cores = self.roster.cores
        if cores == 1:
            return
        rank, core = divmod(source.lane, cores)
        low, high = np.searchsorted(code.at, [begin, end])
        # The last one stands for loops, whose number is -1.
        touching = np.append(self.touching[source.lane], False)
        for at in code.at[low:high][touching[code.numbers[low:high]]].tolist():
            where = source.where(code.old[at + 1])
            touched = self._use(source, code, at)
            if source.recording.templates[code.old[at]].row.name == "fill" and self._creates(
                source, touched[0][1]
            ):
                continue
            for leaf, tensor in touched:
                event = (id(code.block), at)
                self.races[rank].touch(core, Touch(tensor, leaf.writes, where, [event]))

    def _values(self, sources: Sequence[Source]) -> Values:
        """Return which events of a logical core write the same."""
        lane = sources[0].lane
        if lane not in self._known:
            self._known[lane] = Values(sources, frozenset(SYNCS))
        return self._known[lane]

    def _creates(self, source: Source, tensor: NkiTensor) -> bool:
        """Return whether a fill is that with which both cores create a tensor."""
        storage = id(tensor.storage)
        first = storage in source.recorder.filled and storage not in self.created
        self.created.add(storage)
        return first

    def _use(self, source: Source, code: Rewritten, at: int) -> list[tuple[Leaf, NkiTensor]]:
        """Take note of what an event does with shared HBM; return its operands there."""
        template, line = source.recording.templates[code.old[at]], code.old[at + 1]
        touched = list(source.shared_operands(code.old, at))
        fills = self.memory.used(template, touched, source.where(line), surely=self.surely)
        self._fill(source, fills, source.line(line))
        return touched

    def _fill(self, source: Source, fills: Iterable[Fill], line: int) -> None:
        """Give memory that nothing has written what the documented simulator fills it with."""
        for tensor, value in fills:
            self.writer.emit(
                self.root,
                HIDDEN["fill"],
                {"dst": tensor},
                {"value": value},
                line,
                source.lane,
                hidden=True,
            )

    def _returned(self, source: Source) -> None:
        """Check what a logical core with two physical ones returns."""
        recording = source.recording
        for result in leaves(recording.results, Result):
            places = ((result.storage, result.offset),)
            tensor = source.tensor(result.form, places)
            where = source.recorder.where_created(recording.storages[result.storage])
            fills = self.memory.look(tensor, "the kernel returns", where)
            self._fill(source, fills, self.writer.line(where))


def _append(block: Block, loop: Loop) -> None:
    block.code.extend((-1, len(block.loops)))
    block.loops.append(loop)


def _called(stop: _Stop) -> str:
    return stop.arrival.label if stop.arrival is not None else "a loop on the device"


def _where(source: Source, stop: _Stop) -> tuple[str, int]:
    if stop.arrival is not None:
        return stop.arrival.where
    assert stop.loop is not None
    return source.where(stop.loop.location)


def _alike(a: _Stop, b: _Stop) -> bool:
    """Return whether two participants who wait for each other are at the same thing."""
    if a.arrival is None or b.arrival is None:
        return a.arrival is b.arrival
    return SYNCS[a.arrival.name].together([a.arrival, b.arrival])
