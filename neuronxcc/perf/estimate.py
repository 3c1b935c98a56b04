"""From a stream to a number that says where it comes from: :func:`predict`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuronxcc.perf.dependences import Edges, Flat, edges_of, orders_of
from neuronxcc.perf.loops import FIRST, SMALL, Instance, Unrolled, repeats, unroll
from neuronxcc.perf.model import CoreModel, Cost, model_of
from neuronxcc.perf.parameters import CALIBRATED, MODEL_VERSION, STATED_ERROR, Parameters
from neuronxcc.perf.prediction import LineShare, Prediction, Skipped
from neuronxcc.perf.stream import ENGINES, QUEUES, TENSOR, Block, Ints, Loop, Stream
from neuronxcc.perf.timeline import Timeline, simulate, simulate_listed
from neuronxcc.targets import Target

__all__ = ["complete", "edges", "predict"]

_US = 1e6  # picoseconds in a microsecond


class _Whole(NamedTuple):
    """The time of a whole program in picoseconds, and what of it was not simulated."""

    total: int
    skipped: tuple[Skipped, ...]


def predict(
    stream: Stream,
    target: Target,
    *,
    parameters: Parameters | None = None,
    full: bool = False,
) -> Prediction:
    """Return how long a stream would take on a target.

    Args:
        stream: the program.
        target: the machine.
        parameters: of the model; by default those of its table.
        full: simulate every iteration of every loop, which gives the same and takes longer.
    """
    model = model_of(target, parameters)
    costs = [model.cost(work) for work in stream.works]
    queue = _queues(stream)
    most: dict[int, int] = {}
    # What a compiler orders has no iterations that follow each other.
    if not (full or stream.listed) and stream.body.counted() > SMALL:
        most = {id(loop): FIRST for loop in _loops(stream.body)}
    while True:
        unrolled = unroll(stream.body, most)
        timeline = _run(unrolled.flat, stream, costs, queue, model)
        whole = _whole(unrolled, timeline, most, model.semaphore)
        if whole is not None:
            break
    return _prediction(stream, model, costs, unrolled, timeline, whole)


def _loops(block: Block) -> list[Loop]:
    return [
        found for _, loop in block.loops for found in (loop, *_loops(loop.body))
    ]  # fmt: skip


class _Groups(NamedTuple):
    """Who keeps an order by itself, as `edges_of` wants to know it."""

    queue: Ints
    engine: Ints
    passes_on: Ints


def _groups(flat: Flat, stream: Stream, queue: Ints) -> _Groups:
    moves = np.array([work.transfer is not None for work in stream.works], bool)
    number = np.arange(2 * (int(queue.max(initial=0)) + 1))
    engine = (number % 2 == 0).astype(np.int64)
    passes_on = (number // 2 % len(QUEUES) == TENSOR).astype(np.int64)
    return _Groups(2 * queue[flat.work] + moves[flat.work], engine, passes_on)


def _run(flat: Flat, stream: Stream, costs: list[Cost], queue: Ints, model: CoreModel) -> Timeline:
    """Simulate a program without loops."""
    whose = queue[flat.work]
    groups = _groups(flat, stream, queue)
    rest = model.semaphore, model.target.core.dma_engines
    if stream.listed:
        return simulate_listed(flat.work, costs, whose, orders_of(flat, *groups), *rest)
    return simulate(flat.work, costs, whose, edges_of(flat, *groups), *rest)


def edges(made: Prediction) -> Edges:
    """Return what each instruction that was simulated waits for."""
    return edges_of(made.flat, *_groups(made.flat, made.stream, _queues(made.stream)))


def complete(made: Prediction) -> Prediction:
    """Return a prediction with all that the program does, those loops too that were cut short."""
    if not made.left_out_us:
        return made
    machine = made.machine
    return predict(made.stream, machine.target, parameters=machine.parameters, full=True)


def _queues(stream: Stream) -> Ints:
    """Return by work whose queue it is in."""
    return np.array([work.core * len(QUEUES) + work.queue for work in stream.works], np.int64)


def _whole(
    unrolled: Unrolled, timeline: Timeline, most: dict[int, int], semaphore: int
) -> _Whole | None:
    """Return the time of the whole program; None if more iterations have to be looked at.

    Then `most` has become larger.
    """
    start, end = timeline.start.copy(), timeline.end.copy()
    unclear: set[int] = set()
    skipped: list[Skipped] = []
    cut = [instance for instance in unrolled.instances if instance.left]
    for instance in sorted(cut, key=_inner_first):
        found = repeats(instance, start, end, timeline.state, semaphore)
        if found is None:
            unclear.add(instance.loop)
            continue
        extra = found.length * found.times
        later = start > found.at
        at = int(timeline.start[later].min(initial=timeline.total))
        skipped.append(Skipped(at / _US, found.times, found.length / _US))
        start[later] += extra
        end[end > found.at] += extra
    for loop in unclear:
        most[loop] *= 2
    if unclear:
        return None
    return _Whole(int(end.max(initial=0)), tuple(sorted(skipped)))


def _inner_first(instance: Instance) -> int:
    return -instance.depth


def _counts(block: Block, lines: int) -> Ints:
    """Return how often each work runs on each line: by work times lines, plus the line."""
    keys = block.work * lines + block.line
    found = np.bincount(keys) if len(keys) else np.zeros(0, np.int64)
    for _, loop in block.loops:
        inner = _counts(loop.body, lines) * loop.count
        found, inner = (found, inner) if len(found) >= len(inner) else (inner, found)
        found = found.astype(np.int64)
        found[: len(inner)] += inner
    return found


def _prediction(
    stream: Stream,
    model: CoreModel,
    costs: list[Cost],
    unrolled: Unrolled,
    timeline: Timeline,
    whole: _Whole,
) -> Prediction:
    total = whole.total
    lines = max(1, len(stream.lines))
    counts = _counts(stream.body, lines)
    counts = np.pad(counts, (0, len(stream.works) * lines - len(counts)))
    table = counts.reshape(len(stream.works), lines)
    engines = model.target.core.dma_engines
    busy = np.array([_busy(cost, engines) for cost in costs], np.float64)
    often = table.sum(1)
    by_core: dict[tuple[int, str], float] = {}
    moved = hbm = spilled = 0
    for work, count, each in zip(stream.works, often.tolist(), busy.tolist(), strict=True):
        name = "dma" if work.transfer is not None else ENGINES[work.queue]
        key = (work.core, name)
        by_core[key] = by_core.get(key, 0.0) + each * count / _US
        if work.transfer is not None:
            moved += work.transfer.nbytes * count
            hbm += work.transfer.nbytes * count * work.transfer.hbm
            spilled += work.transfer.nbytes * count if work.transfer.spill else 0
    names = (*ENGINES, "dma")
    most = {
        name: max((us for (_, n), us in by_core.items() if n == name), default=0.0)
        for name in names
    }
    per_line = busy @ table / _US
    sum_ = float(per_line.sum()) or 1.0
    shares = [
        LineShare(file, line, int(n), float(us), float(us) / sum_)
        for (file, line), n, us in zip(
            stream.lines, table.sum(0).tolist(), per_line.tolist(), strict=False
        )
        if n
    ]
    device = total / _US
    latency = device + model.launch / _US
    return Prediction(
        name=stream.name,
        target=model.target.name,
        cores=stream.cores,
        model=MODEL_VERSION,
        calibrated=model.target.name in CALIBRATED,
        device_us=device,
        launch_us=model.launch / _US,
        interval_us=(latency / (1 + STATED_ERROR), latency * (1 + STATED_ERROR)),
        instructions=int(often.sum()),
        busy_us=most,
        moved_bytes=moved,
        hbm_bytes=hbm,
        spilled_bytes=spilled,
        flops=sum(w.flops * n for w, n in zip(stream.works, often.tolist(), strict=True)),
        critical=_critical(stream, costs, unrolled.flat, timeline),
        lines=tuple(sorted(shares, key=lambda share: -share.busy_us)),
        notes=tuple(stream.notes),
        stream=stream,
        timeline=timeline,
        flat=unrolled.flat,
        left_out_us=(total - timeline.total) / _US,
        skipped=whole.skipped,
        machine=model,
        counts=often,
    )


def _busy(cost: Cost, engines: int) -> float:
    """Picoseconds that a work keeps its engine busy; of a transfer, all DMA engines of the core."""
    return cost.moving * cost.engines / engines if cost.engines else cost.issue


def _critical(
    stream: Stream, costs: list[Cost], flat: Flat, timeline: Timeline
) -> dict[str, float]:
    """Return who the end waited for: follow from the last instruction what each one waited for."""
    if not len(flat.work):
        return {}
    start, cause = timeline.start.tolist(), timeline.cause.tolist()
    found: dict[str, float] = {}
    i = int(np.argmax(timeline.end))
    until = timeline.total
    while i >= 0:
        work = stream.works[int(flat.work[i])]
        cost = costs[int(flat.work[i])]
        spent = until - start[i]
        # What a transfer waits for besides its start is other transfers.
        works = max(0, spent - cost.start - cost.making) if cost.engines else min(spent, cost.issue)
        name = "dma" if work.transfer is not None else ENGINES[work.queue]
        found[name] = found.get(name, 0.0) + works
        found["waiting"] = found.get("waiting", 0.0) + spent - works
        until, i = start[i], cause[i]
    whole = sum(found.values()) or 1.0
    return {name: value / whole for name, value in sorted(found.items(), key=lambda x: -x[1])}
