"""Collectives of the neuron group against gloo on CPU tensors, in the same processes, in turn.

    python -m benchmarks.collectives [--only REGEX] [--list]
    python -m benchmarks.collectives --sweep 2        # all_reduce of 2 ranks by size, no targets

Every rank has one thread. A sample begins after a barrier and ends when the last rank is done;
small messages are repeated within a sample. The ratio is the fastest sample of gloo over the
fastest of neuron; medians are printed beside. "limit" is the time in which all ranks together copy
as many bytes as the collective has to read and write through shared memory, measured by copies of
64 MiB by all ranks at once in the same run (past the cache, the fastest that we know). Exit code: 0
when all targets are met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from benchmarks import harness, quiet, ranks, suite
from tests.distributed.ranks import run_ranks
from torch_neuronx import _C

if TYPE_CHECKING:
    import argparse

MIB = 1 << 20
LARGE = 64 * MIB
SMALL = 1024
# The samples of a small message take at least this long.
SAMPLE_SECONDS = 0.01
# How many times the copy limit a large collective of two ranks may take.
LARGEST_OVER_LIMIT = 2.0
BACKENDS = ("cpu", "neuron")

Step = Callable[[], object]


def all_reduce(device: str, count: int, _: int) -> Step:
    x = torch.ones(count, device=device)
    return lambda: dist.all_reduce(x)


def all_gather(device: str, count: int, world: int) -> Step:
    x, out = torch.ones(count, device=device), torch.ones(world * count, device=device)
    return lambda: dist.all_gather_single(out, x)


def all_gather_fresh(device: str, count: int, world: int) -> Step:
    x = torch.ones(count, device=device)
    return lambda: dist.all_gather_single(torch.empty(world * count, device=device), x)


def reduce_scatter(device: str, count: int, world: int) -> Step:
    x, out = torch.ones(count, device=device), torch.ones(count // world, device=device)
    return lambda: dist.reduce_scatter_single(out, x)


def broadcast(device: str, count: int, _: int) -> Step:
    x = torch.ones(count, device=device)
    return lambda: dist.broadcast(x, 0)


def all_to_all(device: str, count: int, _: int) -> Step:
    x, out = torch.ones(count, device=device), torch.ones(count, device=device)
    return lambda: dist.all_to_all_single(out, x)


def ping_pong(device: str, count: int, _: int) -> Step:
    """A message to the other rank and back."""
    x, rank = torch.ones(count, device=device), dist.get_rank()
    turns = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)

    def step() -> None:
        for turn in turns:
            turn(x, 1 - rank)

    return step


# How many times the payload of a rank all ranks together read and write, by the number of ranks.
TRAFFIC: dict[Callable[..., Step], Callable[[int], float]] = {
    all_reduce: lambda n: 2 * n,
    all_gather: lambda n: 2 * n * n,
    all_gather_fresh: lambda n: 2 * n * n,
    reduce_scatter: lambda n: n + 1,
    broadcast: lambda n: 2 * (n - 1),
    all_to_all: lambda n: 2 * n,
    ping_pong: lambda _: 4,
}


@dataclass(frozen=True)
class Case:
    """A collective of `world` ranks on `nbytes` of float32 that each passes in."""

    make: Callable[[str, int, int], Step]
    nbytes: int
    world: int
    target: float | None = None  # gloo's time over ours, at least
    limited: bool = False  # at most LARGEST_OVER_LIMIT times the limit, too

    @property
    def name(self) -> str:
        size = f"{self.nbytes // MIB} MiB" if self.nbytes >= MIB else f"{self.nbytes} B"
        return f"{self.make.__name__} {size}, {self.world} ranks"


@dataclass(frozen=True)
class Copies:
    """A core's memory before and after it was moved into a memory file, for other ranks to map."""

    name: str = "copy 64 MiB, private and shared"


def table() -> list[Case | Copies]:
    """All rows in the order of the report."""
    return [
        Copies(),
        Case(all_reduce, LARGE, 2, 3.5, limited=True),
        Case(all_gather, LARGE, 2, 5, limited=True),
        Case(reduce_scatter, LARGE, 2, 5, limited=True),
        Case(all_reduce, SMALL, 2, 8),
        Case(all_gather_fresh, LARGE, 2),
        Case(broadcast, LARGE, 2),
        Case(all_to_all, LARGE, 2),
        Case(ping_pong, 4, 2),
        Case(ping_pong, LARGE, 2),
        Case(all_reduce, LARGE, 4, 4),
        Case(all_gather, LARGE, 4, 4),
        Case(reduce_scatter, LARGE, 4, 4),
        Case(all_reduce, SMALL, 4, 8),
        Case(broadcast, LARGE, 4),
        Case(all_to_all, LARGE, 4),
    ]


def sweep(world: int) -> list[Case]:
    """all_reduce from 256 B to 256 MiB."""
    return [Case(all_reduce, 256 * 4**i, world) for i in range(11)]


@dataclass(frozen=True)
class Spans:
    """When this rank began and ended each sample (one clock for all processes), and its steps."""

    begin: list[float]
    end: list[float]
    times: int


def take(step: Step, times: int) -> tuple[float, float]:
    """Begin and end of `times` steps after a barrier."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    torch.accelerator.synchronize()
    return begin, time.perf_counter()


def times_for(step: Step) -> int:
    """How many steps a sample has, the same on every rank."""
    take(step, 2)
    begin, end = take(step, 3)
    longest = torch.tensor([(end - begin) / 3])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return max(1, min(1000, round(SAMPLE_SECONDS / float(longest))))


def plain_copy() -> Step:
    source, target = (torch.ones(LARGE // 4, device="neuron") for _ in range(2))
    return lambda: _C.distributed_copy(target, source)


def observe(cases: Sequence[Case], repeats: int) -> tuple[list[float], list[list[Spans]]]:
    """On one rank: seconds of copies of 64 MiB, and every case's samples on both backends."""
    copy = plain_copy()
    copies = [end - begin for begin, end in (take(copy, 1) for _ in range(repeats))]
    del copy
    found = []
    for case in cases:
        steps = [case.make(device, case.nbytes // 4, case.world) for device in BACKENDS]
        times = [times_for(step) for step in steps]
        spans = [Spans([], [], n) for n in times]
        for _ in range(repeats):
            for step, span in zip(steps, spans, strict=True):
                begin, end = take(step, span.times)
                span.begin.append(begin)
                span.end.append(end)
        found.append(spans)
    return copies, found


@dataclass(frozen=True)
class Row:
    """Milliseconds of a collective: fastest and median sample, and the copy limit."""

    name: str
    gloo_ms: float
    gloo_median_ms: float
    neuron_ms: float
    neuron_median_ms: float
    limit_ms: float
    ratio: float
    target: str
    met: bool

    def line(self) -> str:
        return (
            f"{self.name:34} {self.gloo_ms:9.4f} {self.gloo_median_ms:9.4f} {self.neuron_ms:10.4f}"
            f" {self.neuron_median_ms:9.4f} {self.limit_ms:8.3f} {self.ratio:6.2f} {self.target}"
        )


@dataclass(frozen=True)
class CopyRow:
    """GB/s, read plus written, of the fastest and the median copy of one process alone."""

    name: str
    private: float
    private_median: float
    shared: float
    shared_median: float
    met: bool = True

    def line(self) -> str:
        return (
            f"{self.name:34} {self.private:.1f} ({self.private_median:.1f}) and"
            f" {self.shared:.1f} ({self.shared_median:.1f}) GB/s"
        )


def milliseconds(spans: Sequence[Spans]) -> list[float]:
    """Of every sample, from the last rank's begin to the last rank's end; one step's share."""
    begins = zip(*(s.begin for s in spans), strict=True)
    ends = zip(*(s.end for s in spans), strict=True)
    return [
        1000 * (max(end) - max(begin)) / spans[0].times
        for begin, end in zip(begins, ends, strict=True)
    ]


def make_row(case: Case, gloo: list[float], neuron: list[float], bytes_per_ms: float) -> Row:
    limit = TRAFFIC[case.make](case.world) * case.nbytes / bytes_per_ms
    ratio = min(gloo) / min(neuron)
    target = "" if case.target is None else f">= {case.target:g}x"
    met = case.target is None or ratio >= case.target
    if case.limited:
        target += f", <= {LARGEST_OVER_LIMIT:g} limits"
        met = met and min(neuron) <= LARGEST_OVER_LIMIT * limit
    return Row(
        case.name,
        min(gloo),
        statistics.median(gloo),
        min(neuron),
        statistics.median(neuron),
        limit,
        ratio,
        target,
        met,
    )


def measure(cases: Sequence[Case], repeats: int) -> list[Row]:
    """All cases of one number of ranks, in one job."""
    world = cases[0].world
    results = ranks.run(world, observe, cases, repeats)
    slowest = [max(sample) for sample in zip(*(copies for copies, _ in results), strict=True)]
    # The median: the fastest copies of all may be luck of the cache, and a limit must be one.
    bytes_per_ms = 2 * world * LARGE / (1000 * statistics.median(slowest))
    print(f"  {world} ranks copy {bytes_per_ms / 1e6:.1f} GB/s together, read plus written")
    rows = []
    for i, case in enumerate(cases):
        gloo, neuron = (milliseconds([found[i][b] for _, found in results]) for b in range(2))
        rows.append(make_row(case, gloo, neuron, bytes_per_ms))
    return rows


def observe_copies(rank: int, world: int, repeats: int) -> list[list[float]]:
    """Seconds of copies of 64 MiB, of private memory and then of shared memory."""
    del rank, world
    copy = plain_copy()
    found = []
    for share in (False, True):
        if share:
            _C.share_arena(0)
        samples = [harness.sample(copy, 1) for _ in range(repeats + 2)]
        found.append(samples[2:])
    return found


def measure_copies(asked: Copies, repeats: int) -> CopyRow:
    (seconds,) = run_ranks(1, observe_copies, repeats, backend="none")
    rates = [2e-9 * LARGE / t for s in seconds for t in (min(s), statistics.median(s))]
    return CopyRow(asked.name, *rates)


HEADER = (
    f"{'':34} {'gloo ms':>9} {'median':>9} {'neuron ms':>10} {'median':>9} {'limit':>8}"
    f" {'ratio':>6} target"
)


def measured(entries: Sequence[Case | Copies], repeats: int) -> Iterator[Row | CopyRow]:
    for entry in entries:
        if isinstance(entry, Copies):
            yield measure_copies(entry, repeats)
    cases = [entry for entry in entries if isinstance(entry, Case)]
    for world in sorted({case.world for case in cases}):
        yield from measure([case for case in cases if case.world == world], repeats)


def run(entries: Sequence[Case | Copies], options: argparse.Namespace, watch: quiet.Watch) -> int:
    if options.sweep:
        entries = sweep(options.sweep)
    rows = measured(entries, options.repeats)
    return suite.tell(HEADER, rows, lambda row: row.line(), options, watch)


def main() -> int:
    parser = quiet.parser(__doc__, repeats=11)
    parser.add_argument("--sweep", type=int, default=0, metavar="RANKS", help="all_reduce by size")
    return suite.main(parser, table(), run)


if __name__ == "__main__":
    sys.exit(main())
