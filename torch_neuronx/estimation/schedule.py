"""The clock of a step: segments on the core, collectives beside them, the host before both.

A core runs its segments in order. A collective begins when what it sends has been computed and the
one before it has ended; whoever reads what it brought waits for it. In eager mode every operator is
a program of its own, which the host has to ask for; it asks ahead of the core, until it reads a
value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from neuronxcc.perf.graphs.host import HostParameters
from neuronxcc.perf.graphs.sections import BY_BOUNDS
from torch_neuronx.distributed.planning.collectives import Collective
from torch_neuronx.distributed.planning.memory import Block
from torch_neuronx.estimation.recorder import Place, Region, Tape
from torch_neuronx.estimation.segments import Piece, Timed, Timer
from torch_neuronx.nki.launches import OPERATOR

__all__ = ["Clock", "Mode", "Row", "device_us", "run"]

Mode = Literal["compiled", "eager"]
_READS = torch.ops.aten._local_scalar_dense.default
_COPIES = torch.ops.aten.copy_.default
#: Microseconds of a collective.
Network = Callable[[Collective], float]


class Row(NamedTuple):
    """What one line of a program costs.

    Attributes:
        section: the part of the step: "forward", "backward", "optimizer", ...
        layer: the module, "" outside of any.
        operator: of PyTorch.
        line: "file:line" of the user's program, "" if no Python code asked.
        engine: who does most of it; "dma" for memory, "cc" for what the core waits for of a
            collective, "host" for what it waits for of the host.
        us: microseconds of the step.
        bytes: of HBM, or of a collective.
        flops: multiplications and additions of products.
        how: where the time is from: a simulated device program, bytes and flops, or a table.
    """

    section: str
    layer: str
    operator: str
    line: str
    engine: str
    us: float
    bytes: int
    flops: int
    how: str


@dataclass(slots=True)
class Clock:
    """The time of a step.

    Attributes:
        us: from its begin to its end.
        rows: what it is made of; their microseconds add up to `us`.
        sections: microseconds by part of the step.
        busy: microseconds by engine, "dma", "cc", "host" and "latency".
        bound: microseconds by what binds.
        pieces: of all segments, with how often each counts.
        read: bytes that HBM gives.
        written: bytes that HBM takes.
        spilled: bytes of these that are there because memory on the chip is too small.
        programs: how many the host starts.
        device_sections: how many sections all segments have.
        notes: what is not modelled.
    """

    us: float = 0.0
    rows: list[Row] = field(default_factory=list)
    sections: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    read: int = 0
    written: int = 0
    spilled: int = 0
    programs: int = 0
    device_sections: int = 0
    notes: set[str] = field(default_factory=set)


def device_us(us: float, rows: Iterable[Row]) -> float:
    """Return a step's microseconds without what the core waits for of the host."""
    return max(0.0, us - sum(row.us for row in rows if row.engine == "host"))


COLLECTIVES: str = "collectives table"
HOST: str = "host table"


def run(
    tape: Tape,
    regions: Mapping[Region, str],
    timer: Timer,
    network: Network,
    host: HostParameters,
    mode: Mode,
) -> Clock:
    """Put the regions of a tape on a clock.

    Args:
        tape: what was recorded.
        regions: those that count, with what rows call them.
        timer: of segments.
        network: of collectives.
        host: what the host adds.
        mode: "compiled": a region is a program, and the first one is waited for; "eager": every
            operator is.
    """
    made = _Run(tape, regions, timer, network, host)
    if mode == "eager":
        made.eager([n for n, call in enumerate(tape.calls) if call.region in regions])
    else:
        for part in _parts(tape, regions):
            made.compiled(part)
    return made.finished()


def _parts(tape: Tape, regions: Collection[Region]) -> Iterator[list[int]]:
    """The calls of each region, in order."""
    part: list[int] = []
    for number, call in enumerate(tape.calls):
        if call.region not in regions:
            continue
        if part and tape.calls[part[-1]].region != call.region:
            yield part
            part = []
        part.append(number)
    if part:
        yield part


class _Run:
    def __init__(
        self, tape: Tape, names: Mapping[Region, str], timer: Timer, network: Network,
        host: HostParameters,
    ) -> None:  # fmt: skip
        self.tape, self.names = tape, names
        self.timer, self.network, self.host = timer, network, host
        self.clock = Clock()
        self.free = 0.0  # when the core is
        self.link = 0.0  # when the collectives' cores are
        self.asked = 0.0  # when the host has asked for all so far
        self.coming: dict[Block, tuple[float, int]] = {}  # by memory: until when, by which call
        self.rows: dict[Row, list[float]] = {}  # by what is not summed up

    # ---- compiled -------------------------------------------------------------------------------

    def compiled(self, calls: Sequence[int]) -> None:
        """One program."""
        # Forwards are asked for by a caller who waits; what follows one is behind it in a queue.
        first = not self.clock.programs or self.tape.calls[calls[0]].region.phase == "forward"
        self.clock.programs += 1
        us = self.host.launch if first else self.host.queued + self.host.switch
        self._waits(us, self._place(calls[0], "launch"), self._section(calls[0]), "host", HOST)
        segment: list[int] = []
        for number in calls:
            call = self.tape.calls[number]
            if call.collective is not None:
                self._segment(segment)
                segment = []
                self._collective(number)
                continue
            if segment and any(self.tape.blocks[n] in self.coming for n in call.given):
                self._segment(segment)
                segment = []
            if any(self.tape.blocks[n] in self.coming for n in call.given):
                self._arrive(number)
            segment.append(number)
        self._segment(segment)

    def _segment(self, calls: Sequence[int]) -> None:
        if calls:
            self._work(calls, self.timer.time(calls))

    def _work(self, calls: Sequence[int], timed: Timed) -> None:
        clock = self.clock
        self.free += timed.us
        numbered = [n for n in calls if self.tape.calls[n].func is not _READS]
        for piece in timed.pieces:
            number = numbered[piece.call]
            self._row(
                self._section(number), self.tape.calls[number].place, piece.engine, piece.us,
                piece.bytes, piece.flops, piece.how,
            )  # fmt: skip
        clock.pieces += timed.pieces
        clock.read += timed.read
        clock.written += timed.written
        clock.spilled += timed.spilled
        clock.device_sections += timed.sections
        clock.notes |= timed.notes
        for mine, its in ((clock.busy, timed.busy), (clock.bound, timed.bound)):
            for name, us in its.items():
                mine[name] = mine.get(name, 0.0) + us

    def _collective(self, number: int) -> None:
        call = self.tape.calls[number]
        assert call.collective is not None
        us = self.network(call.collective)
        self._arrive(number)  # what it sends may be what another one brings
        self.link = max(self.link, self.free) + us
        self.clock.busy["cc"] = self.clock.busy.get("cc", 0.0) + us
        for value in call.results:
            if value is not None:
                self.coming[self.tape.blocks[value]] = (self.link, number)
        self._row(
            self._section(number), call.place, "cc", 0.0, call.collective.bytes, 0, COLLECTIVES
        )

    def _arrive(self, number: int) -> None:
        """Wait for the collectives whose memory a call reads."""
        for value in self.tape.calls[number].given:
            until, by = self.coming.pop(self.tape.blocks[value], (0.0, -1))
            if until > self.free:
                self._exposed(until - self.free, by)

    def _exposed(self, us: float, by: int) -> None:
        call = self.tape.calls[by]
        self._waits(us, call.place, self._section(by), "cc", COLLECTIVES)

    def _waits(self, us: float, place: Place, section: str, engine: str, how: str) -> None:
        self.free += us
        self.clock.bound[engine] = self.clock.bound.get(engine, 0.0) + us
        if engine == "host":
            self.clock.busy["host"] = self.clock.busy.get("host", 0.0) + us
        self._row(section, place, engine, us, 0, 0, how)

    # ---- eager ----------------------------------------------------------------------------------

    def eager(self, calls: Sequence[int]) -> None:
        """Every operator by itself; the host asks ahead."""
        kernels: set[int | None] = set()  # what they give
        for number in calls:
            call = self.tape.calls[number]
            if call.func._schema.name == OPERATOR:
                kernels.update(call.results)
            if call.func is _COPIES and call.given[-1] in kernels:
                continue  # it says where the kernel writes
            section = self._section(number)
            if call.func is _READS:
                # The host waits until the core has got there.
                us = self.host.eager_wait
                self._waits(us, call.place, section, "host", HOST)
                self.asked = self.free
                continue
            if call.collective is not None:
                self._asks(number, section)
                self._collective(number)
                continue
            self._arrive(number)
            timed = self.timer.time([number])
            if not timed.us:
                continue  # another view
            self._asks(number, section)
            self._work([number], timed)

    def _asks(self, number: int, section: str) -> None:
        self.clock.programs += 1
        self.asked += self.host.dispatch
        if self.asked > self.free:
            place = self.tape.calls[number].place
            self._waits(self.asked - self.free, place, section, "host", HOST)

    # ---- all ------------------------------------------------------------------------------------

    def finished(self) -> Clock:
        """Wait for what is still under way."""
        clock = self.clock
        if self.link > self.free and self.coming:
            until, by = max(self.coming.values())
            if until > self.free:
                self._exposed(until - self.free, by)
        clock.us = self.free
        clock.rows = sorted(
            (
                key._replace(us=values[0], bytes=int(values[1]), flops=int(values[2]))
                for key, values in self.rows.items()
            ),
            key=lambda row: -row.us,
        )
        return clock

    def _section(self, number: int) -> str:
        return self.names[self.tape.calls[number].region]

    def _place(self, number: int, operator: str) -> Place:
        return self.tape.calls[number].place._replace(operator=operator, layer="", file="", line=0)

    def _row(
        self, section: str, place: Place, engine: str, us: float, nbytes: int, flops: int,
        how: str = BY_BOUNDS,
    ) -> None:  # fmt: skip
        line = f"{place.file}:{place.line}" if place.file else ""
        key = Row(section, place.layer, place.operator, line, engine, 0.0, 0, 0, how)
        values = self.rows.setdefault(key, [0.0, 0.0, 0.0])
        for at, more in enumerate((us, nbytes, flops)):
            values[at] += more
        self.clock.sections[section] = self.clock.sections.get(section, 0.0) + us
