"""The performance model's timeline beside a slow and obvious one, and what every time has to keep.

Random programs of some engines and transfers, with and without loops, on every target.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.perf import (
    ENGINES,
    PARAMETERS,
    QUEUES,
    Parameters,
    Prediction,
    Stream,
    Transfer,
    Work,
    Writer,
    estimate,
    model_of,
    predict,
    trace,
)
from neuronxcc.perf.loops import unroll
from neuronxcc.perf.model import PSUM_PORT, SBUF_PORT, Cost
from neuronxcc.perf.parameters import MODEL_VERSION, markdown
from neuronxcc.perf.stream import GPSIMD, TENSOR
from neuronxcc.targets import TARGETS, get_target

CELLS = 6


@st.composite
def works(draw: st.DrawFn) -> Work:
    core = draw(st.integers(0, 1))
    if draw(st.booleans()):
        queue = draw(st.integers(0, len(ENGINES) - 1))
        cycles = draw(st.sampled_from((64, 100, 512, 3000)))
        sbuf, psum = draw(st.booleans()), draw(st.booleans())
        return Work("compute", queue, cycles, core=core, sbuf=sbuf, psum=psum)
    rows = draw(st.sampled_from((1, 3, 16, 128)))
    row = draw(st.sampled_from((4, 512, 2048, 8192)))
    made = draw(st.sampled_from(("", "", "hardware", "gpsimd")))
    queue = draw(st.integers(0, len(QUEUES) - 1))
    moved = Transfer(rows * row, row, hbm=draw(st.integers(0, 2)), made=made)
    return Work("transfer", queue, 0, core=core, transfer=moved)


def add(data: st.DataObject, made: Writer, chosen: list[Work], size: int) -> None:
    cells = st.sets(st.integers(0, CELLS - 1), max_size=2)
    for _ in range(size):
        work = data.draw(st.sampled_from(chosen))
        line = ("kernel.py", data.draw(st.integers(1, 3)))
        made.add(work, data.draw(cells), data.draw(cells), line)


def random_works(data: st.DataObject) -> list[Work]:
    return data.draw(st.lists(works(), min_size=1, max_size=6))


def orders(stream: Stream, all_works: list[Work]) -> list[list[tuple[int, str]]]:
    """Whom each instruction waits for, pair by pair: its turn, its end, or that and a semaphore."""
    flat = unroll(stream.body, {}).flat
    uses: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in all_works]
    for event, cell, writes in zip(flat.event, flat.cell, flat.writes, strict=True):
        uses[event][writes].add(int(cell))
    found: list[list[tuple[int, str]]] = []
    for i, b in enumerate(all_works):
        reads, writes = uses[i]
        found.append([])
        for j, a in enumerate(all_works[:i]):
            raw = bool(uses[j][1] & reads)
            own = (a.core, a.queue) == (b.core, b.queue) and not (a.transfer or b.transfer)
            passes = own and (not raw or a.queue == TENSOR)
            if raw or uses[j][1] & writes or uses[j][0] & writes:
                found[-1].append((j, "turn" if passes else "end" if own else "semaphore"))
    return found


def waits(stream: Stream, all_works: list[Work]) -> list[list[tuple[int, bool]]]:
    """Whose end each instruction waits for, and whether it is one of its own engine's."""
    return [
        [(j, how == "end") for j, how in before if how != "turn"]
        for before in orders(stream, all_works)
    ]


class SlowCore:
    """What the queues of a core share."""

    def __init__(self, engines: int) -> None:
        self.dma = [0] * engines
        self.makers = [0, 0]
        self.ports: dict[int, int] = {}

    def begin(self, at: int, cost: Cost) -> int:
        """Take the ports from a time on, and return when that is possible."""
        held = [port for port in (SBUF_PORT, PSUM_PORT) if cost.ports & port]
        begin = max([at, *(self.ports.get(port, 0) for port in held)])
        self.ports |= dict.fromkeys(held, begin + cost.issue)
        return begin

    def move(self, at: int, cost: Cost) -> int:
        """Take the engines that are free first, and return when the last one is done."""
        taken = sorted(range(len(self.dma)), key=lambda e: self.dma[e])[: cost.engines]
        for engine in taken:
            self.dma[engine] = max(self.dma[engine], at) + cost.moving
        return max(self.dma[engine] for engine in taken)

    def make(self, at: int, cost: Cost) -> int:
        """Take one of the units that make descriptors, and return when it is done."""
        unit = self.makers.index(min(self.makers))
        self.makers[unit] = max(self.makers[unit], at) + cost.making
        return self.makers[unit]


def slow(stream: Stream, target: Any) -> list[tuple[int, int]]:
    """Start and end of every instruction, found head of queue by head of queue."""
    model = model_of(target)
    all_works = [stream.works[i] for i in unroll(stream.body, {}).flat.work.tolist()]
    before = waits(stream, all_works)
    cores = [SlowCore(model.target.core.dma_engines) for _ in range(2)]
    ends: dict[int, tuple[int, int]] = {}
    free: dict[tuple[int, int], int] = {}
    ended: dict[tuple[int, int], int] = {}
    ready: dict[tuple[int, int], tuple[int, int]] = {}
    queues: dict[tuple[int, int], list[int]] = {}
    for i, work in enumerate(all_works):
        queues.setdefault((work.core, work.queue), []).append(i)
    while len(ends) < len(all_works):
        for key, members in queues.items():
            if members and key not in ready and all(j in ends for j, _ in before[members[0]]):
                others = [
                    ends[j][1] + (0 if own else model.semaphore) for j, own in before[members[0]]
                ]
                ready[key] = max([free.get(key, 0), *others]), members.pop(0)
        key = min(ready, key=lambda k: ready[k])
        begin, i = ready.pop(key)
        core, cost = cores[key[0]], model.cost(all_works[i])
        begin = core.begin(max(begin, free.get(key, 0)), cost)
        free[key] = end = begin + cost.issue
        if cost.engines:
            if cost.maker == 1:
                end = core.make(end, cost)
            if cost.maker == 2:
                gpsimd = (key[0], GPSIMD)
                end = free[gpsimd] = max(free.get(gpsimd, 0), end) + cost.making
            end = ended[key] = max(core.move(end + cost.start, cost), ended.get(key, 0))
        ends[i] = begin, end + cost.latency
    return [ends[i] for i in range(len(all_works))]


@given(st.data(), st.sampled_from(TARGETS))
def test_the_timeline_is_that_of_the_slow_one(data: st.DataObject, target: Any) -> None:
    made = Writer()
    chosen = random_works(data)
    add(data, made, chosen, data.draw(st.integers(1, 25)))
    found = predict(made.stream, target)
    pairs = list(zip(found.timeline.start.tolist(), found.timeline.end.tolist(), strict=True))
    assert pairs == slow(made.stream, target)


@given(st.data(), st.sampled_from(TARGETS))
def test_loops_that_are_cut_short_take_the_same_time(data: st.DataObject, target: Any) -> None:
    made, chosen = Writer(), random_works(data)
    add(data, made, chosen, data.draw(st.integers(0, 3)))
    with made.loop(data.draw(st.integers(1, 150))):
        add(data, made, chosen, data.draw(st.integers(1, 4)))
        if data.draw(st.booleans()):
            with made.loop(data.draw(st.integers(1, 40))):
                add(data, made, chosen, data.draw(st.integers(1, 2)))
            add(data, made, chosen, data.draw(st.integers(0, 2)))
    add(data, made, chosen, data.draw(st.integers(0, 3)))
    with mock.patch.object(estimate, "SMALL", 0):
        short = predict(made.stream, target)
        full = predict(made.stream, target, full=True)
    assert short.device_us == full.device_us
    assert short.busy_us == full.busy_us
    assert short.instructions == full.instructions == len(full.flat.work)
    assert short.lines == full.lines


def streaming(tiles: int, buffers: int = 4, row: int = 2048) -> Stream:
    """Load, square, store; each tile has its memory, and there are some of them."""
    made = Writer("streaming")
    moved = Transfer(128 * row, row)
    load = Work("dma_copy", QUEUES.index("load"), 0, transfer=moved)
    store = Work("dma_copy", QUEUES.index("store"), 0, transfer=moved)
    square = Work("tensor_tensor", ENGINES.index("vector"), 512, sbuf=True)
    for tile in range(tiles):
        a, b = tile % buffers * 2, tile % buffers * 2 + 1
        made.add(load, writes=[a])
        made.add(square, reads=[a], writes=[b])
        made.add(store, reads=[b])
    return made.stream


def test_a_loop_that_repeats_itself_is_cut_short() -> None:
    """Else the test above would compare a thing with itself."""
    made = Writer()
    load = Work("dma_copy", QUEUES.index("load"), 0, transfer=Transfer(1 << 18, 2048))
    with made.loop(100_000):
        made.add(load, writes=[0])
        made.add(Work("tensor_tensor", ENGINES.index("vector"), 512), reads=[0], writes=[1])
    found = predict(made.stream, get_target("trn2"))
    assert len(found.flat.work) < 100
    assert found.instructions == 200_000
    assert found.left_out_us > 0.99 * found.device_us


def costs_of(stream: Stream, target: Any) -> list[Cost]:
    model = model_of(target)
    flat = unroll(stream.body, {}).flat
    return [model.cost(stream.works[i]) for i in flat.work.tolist()]


@given(st.data(), st.sampled_from(TARGETS))
def test_times_are_between_the_busiest_engine_and_the_sum(data: st.DataObject, target: Any) -> None:
    made = Writer()
    add(data, made, random_works(data), data.draw(st.integers(1, 25)))
    found = predict(made.stream, target)
    each = [
        c.issue + c.latency + c.start + c.making + c.moving + model_of(target).semaphore
        for c in costs_of(made.stream, target)
    ]
    slack = 1e-6  # microseconds are floating-point
    assert max(found.busy_us.values()) <= found.device_us + slack
    assert found.device_us <= sum(each) / 1e6 + slack
    assert all(0 <= share <= 1 + slack for share in found.utilisation.values())
    assert sum(found.critical.values()) == pytest.approx(1)
    assert sum(line.share for line in found.lines) == pytest.approx(1)


@given(st.sampled_from(TARGETS), st.integers(1, 40), st.integers(1, 6))
def test_more_work_takes_longer(target: Any, tiles: int, buffers: int) -> None:
    here = predict(streaming(tiles, buffers), target)
    assert here.device_us < predict(streaming(tiles + 1, buffers), target).device_us
    assert here.device_us <= predict(streaming(tiles, buffers, row=4096), target).device_us
    more = predict(streaming(tiles, buffers + 1), target)
    assert more.device_us <= here.device_us


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("row", [64, 512, 2048, 65536])
def test_dma_never_exceeds_its_limit(target: Any, row: int) -> None:
    found = predict(streaming(300, row=row), target)
    rate = found.moved_bytes / found.device_us / 1e3
    limit = min(model_of(target).dma_gbps, model_of(target).hbm_gbps)
    assert rate <= limit
    assert (rate > 0.8 * limit) == (row >= 2048)


def test_a_transfer_within_hbm_takes_its_share_twice() -> None:
    model = model_of(get_target("trn2"))
    work = Work("dma_copy", QUEUES.index("move"), 0)
    once, twice = (
        model.cost(work._replace(transfer=Transfer(1 << 20, 4096, hbm=n))).moving for n in (1, 2)
    )
    assert twice == pytest.approx(2 * once, rel=1e-6)


def test_ports_are_shared_on_the_first_core_only() -> None:
    made = Writer()
    for queue in ("vector", "gpsimd"):
        made.add(Work(queue, ENGINES.index(queue), 100_000, sbuf=True))
    busy = {}
    for name in ("trn1", "trn2"):
        found = predict(made.stream, get_target(name))
        busy[name] = sum(found.busy_us.values()) / found.device_us
    assert busy["trn1"] < 1 < busy["trn2"]


def test_parameters_have_a_source_and_are_few() -> None:
    assert len(PARAMETERS) <= 12
    for name, row in PARAMETERS.items():
        assert getattr(Parameters(), name) == row.value
        assert row.source
        assert row.unit
    with pytest.raises(ValueError, match="semaphore is -1: give 0 or more"):
        Parameters(semaphore=-1)


def test_every_parameter_changes_a_time() -> None:
    """One without effect would only look like knowledge."""
    made = Writer()
    load = Work("load", QUEUES.index("load"), 0, transfer=Transfer(1 << 16, 512, made="hardware"))
    made.add(load, writes=[0])
    for number, engine in enumerate(("tensor", "vector", "scalar", "gpsimd")):
        made.add(Work(engine, ENGINES.index(engine), 512), [number], [number + 1])
    slope = Work("reciprocal", ENGINES.index("vector"), 512, slope="reciprocal_slope")
    made.add(slope, [4], [5])
    made.add(Work("tensor_tensor", ENGINES.index("vector"), 512, waits=True), [5], [6])
    target = get_target("trn1")
    before = predict(made.stream, target).latency_us
    for name, row in PARAMETERS.items():
        more = Parameters(**{name: row.value * 2})
        assert predict(made.stream, target, parameters=more).latency_us > before, name


def test_a_summary_names_the_target_and_the_interval() -> None:
    found: Prediction = predict(streaming(8), get_target("trn1"))
    text = str(found)
    assert "streaming on trn1, 1 core" in text
    assert f"model {MODEL_VERSION}, calibrated" in text
    low, high = found.interval_us
    assert low < found.latency_us < high
    assert found.latency_us == found.device_us + PARAMETERS["launch"].value


def test_an_empty_program_is_its_launch() -> None:
    found = predict(Stream(), get_target("trn2"))
    assert (found.device_us, found.instructions, found.bound_by) == (0, 0, "latency")


def test_a_trace_has_every_instruction(tmp_path: Path) -> None:
    found = predict(streaming(8), get_target("trn3"))
    path = trace.save(found, tmp_path / "trace.json")
    content = json.loads(path.read_text())
    shown = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(shown) == found.instructions == 24
    assert max(e["ts"] + e["dur"] for e in shown) == pytest.approx(found.device_us)
    assert content["otherData"]["is_simulation"] is True
    assert content["otherData"]["target"] == "trn3"
    names = {e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"}
    assert names == {"vector", "load", "store"}
    assert np.all([e["dur"] > 0 for e in shown])


def test_the_page_has_the_table_of_parameters() -> None:
    page = Path(__file__).parents[2] / "docs" / "performance.md"
    assert markdown() in page.read_text()


# --- what a compiler orders ----------------------------------------------------------------------


def slow_list(stream: Stream, target: Any) -> list[tuple[int, int]]:
    """List scheduling moment by moment: an engine that is free takes the first that is ready."""
    model = model_of(target)
    all_works = [stream.works[i] for i in unroll(stream.body, {}).flat.work.tolist()]
    before = orders(stream, all_works)
    cores = [SlowCore(model.target.core.dma_engines) for _ in range(2)]
    done: dict[int, tuple[int, int]] = {}
    free: dict[tuple[int, int], int] = {}
    ended: dict[tuple[int, int], int] = {}

    def ready(i: int) -> int:
        ends = [
            done[j][0] if how == "turn" else done[j][1] + (how == "semaphore") * model.semaphore
            for j, how in before[i]
        ]
        key = all_works[i].core, all_works[i].queue
        return max([free.get(key, 0), *ends])

    while len(done) < len(all_works):
        open_ = [i for i in range(len(all_works)) if i not in done]
        open_ = [i for i in open_ if all(j in done for j, _ in before[i])]
        now, i = min((ready(i), i) for i in open_)
        work = all_works[i]
        key, cost = (work.core, work.queue), model.cost(work)
        begin = cores[work.core].begin(now, cost)
        free[key] = end = begin + cost.issue
        if cost.engines:
            end = ended[key] = max(cores[work.core].move(end + cost.start, cost), ended.get(key, 0))
        done[i] = begin, end + cost.latency
    return [done[i] for i in range(len(all_works))]


@given(st.data(), st.sampled_from(TARGETS))
def test_lists_are_those_of_the_slow_one(data: st.DataObject, target: Any) -> None:
    """On one queue of each kind: between queues that begin at once nothing is promised."""
    made = Writer()
    engine = Work("compute", ENGINES.index("scalar"), data.draw(st.sampled_from((64, 500))))
    load = Work("load", QUEUES.index("load"), 0, transfer=Transfer(1 << 15, 2048))
    add(data, made, [engine, load, engine._replace(cycles=3000)], data.draw(st.integers(1, 20)))
    made.stream.listed = True
    found = predict(made.stream, target).timeline
    pairs = list(zip(found.start.tolist(), found.end.tolist(), strict=True))
    assert pairs == slow_list(made.stream, target)


@given(st.data(), st.sampled_from(TARGETS))
def test_lists_keep_what_the_program_means(data: st.DataObject, target: Any) -> None:
    made = Writer()
    add(data, made, random_works(data), data.draw(st.integers(1, 25)))
    made.stream.listed = True
    found = predict(made.stream, target)
    all_works = [made.stream.works[i] for i in found.flat.work.tolist()]
    start, end = found.timeline.start.tolist(), found.timeline.end.tolist()
    semaphore = model_of(target).semaphore
    for i, before in enumerate(waits(made.stream, all_works)):
        for j, own in before:
            assert start[i] >= end[j] + (0 if own else semaphore)
    busy: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, work in enumerate(all_works):
        issue = model_of(target).cost(work).issue
        busy.setdefault((work.core, work.queue), []).append((start[i], start[i] + issue))
    for spans in busy.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_lists_hide_what_an_order_shows() -> None:
    """Chains of two engines, one after the other: in order they stall each other."""
    made = Writer()
    vector, scalar = (Work(n, ENGINES.index(n), 500) for n in ("vector", "scalar"))
    for chain in range(50):
        for step in range(4):
            made.add((vector, scalar)[step % 2], [chain * 5 + step], [chain * 5 + step + 1])
    ordered = predict(made.stream, get_target("trn1"))
    made.stream.listed = True
    listed = predict(made.stream, get_target("trn1"))
    assert listed.device_us < 0.6 * ordered.device_us
    assert listed.device_us < 1.1 * listed.busy_us["vector"]
