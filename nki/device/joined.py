"""Two sections on one timeline: the second one begins while the first one ends.

The sections of a program are one stream for the core: an engine goes on with the next section as
soon as it has nothing more to do in this one, and what a section loads that no earlier section
computes, its weights, is on its way before. Only tensors that go from one to the other are waited
for, each as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from neuronxcc.perf.stream import QUEUES, Block, Ints, Stream, Work
from nki.checks.flow import leaf_roles, starts
from nki.perf.buffers import ordered
from nki.perf.works import is_timed
from nki.recording import Recording, RegisterForm, Result
from nki.trees import leaves

__all__ = ["Link", "joined", "outputs_of"]

#: Number of the first section's output, and of the second one's input that it is.
Link = tuple[int, int]


def outputs_of(recording: Recording) -> list[int]:
    """Return the storages of a recording's results, in order."""
    return [found.storage for found in leaves(recording.results, Result)]


def joined(
    streams: tuple[Stream, Stream],
    recordings: tuple[Recording, Recording],
    links: Iterable[Link],
) -> Stream:
    """Return the stream of two sections.

    Args:
        streams: of the two recordings, which have no loops.
        recordings: see `streams`.
        links: what the second one needs of the first one.
    """
    first, second = streams
    before = len(first.body.work)
    cells = int(first.body.cell.max(initial=-1)) + 1
    more = cells + int(second.body.cell.max(initial=-1)) + 1
    event = [first.body.event, second.body.event + before]
    cell = [first.body.cell, second.body.cell + cells]
    writes = [first.body.writes, second.body.writes]
    pairs = list(links)
    made = outputs_of(recordings[0])
    stores = _accesses(recordings[0], [made[output] for output, _ in pairs])
    loads = _accesses(recordings[1], [recordings[1].inputs[number] for _, number in pairs])
    queues = np.array([work.queue + len(QUEUES) * work.core for work in first.works])
    for stored, loaded in zip(stores, loads, strict=True):
        # The transfers of a queue end in order: whoever waits for the last one waits for all.
        whose = queues[first.body.work[stored]]
        for queue in np.unique(whose).tolist():
            last = stored[whose == queue][-1:]
            for events, shift, kind in ((last, 0, 1), (loaded, before, 0)):
                event.append(events + shift)
                cell.append(np.full(len(events), more, np.int64))
                writes.append(np.full(len(events), kind, np.int64))
            more += 1
    waiting, more_works = _aside(second, loads)
    ahead = _ahead(waiting, more_works)
    event.append(ahead.T.reshape(-1) + before)
    cell.append(np.tile(more + np.arange(len(ahead)), 2))
    writes.append(np.repeat(np.array([1, 0], np.int64), len(ahead)))
    body = Block(
        np.concatenate([first.body.work, waiting + len(first.works)]),
        np.concatenate([first.body.line, second.body.line + len(first.lines)]),
        np.concatenate(event),
        np.concatenate(cell),
        np.concatenate(writes),
    )
    ordered(body)
    return Stream(second.name, [*first.works, *more_works], [*first.lines, *second.lines], body)


_AHEAD = 1 << 20  # bytes of loads that are under way before they are needed


def _ahead(work: Ints, works: Sequence[Work]) -> Ints:
    """Return pairs of loads, the second of which begins when the first one has ended.

    What is loaded ahead must not fill the DMA engines' queues: the section before still stores.
    """
    load = QUEUES.index("load")
    found: list[tuple[int, int]] = []
    under_way: list[tuple[int, int]] = []
    total = 0
    for event, number in enumerate(work.tolist()):
        made = works[number]
        if made.queue != load or made.transfer is None:
            continue
        last = None
        while under_way and total > _AHEAD:
            last, size = under_way.pop(0)
            total -= size
        if last is not None:
            found.append((last, event))
        under_way.append((event, made.transfer.nbytes))
        total += made.transfer.nbytes
    return np.array(found, np.int64).reshape(-1, 2)


def _aside(stream: Stream, loads: Sequence[Ints]) -> tuple[Ints, list[Work]]:
    """Return the works of instructions, and works, with some loads in a queue of their own.

    Loads that wait for the section before do not hold up those of weights.
    """
    works = list(stream.works)
    work = stream.body.work.copy()
    other: dict[int, int] = {}
    for event in np.unique(np.concatenate([np.zeros(0, np.int64), *loads])).tolist():
        number = int(work[event])
        made = works[number]
        if QUEUES[made.queue] != "load" or made.transfer is None:
            continue
        if number not in other:
            moved = made.transfer._replace(
                source=made.transfer.source or "hbm", dest=made.transfer.dest or "sbuf"
            )
            other[number] = len(works)
            works.append(made._replace(queue=QUEUES.index("move"), transfer=moved))
        work[event] = other[number]
    return work, works


def _accesses(recording: Recording, storages: Sequence[int]) -> list[Ints]:
    """Return for each storage the instructions that access it, counted as streams do."""
    if not storages:
        return []
    words = [template.words for template in recording.templates]
    code = np.frombuffer(recording.body.code, np.int64)
    begin = starts(recording.body.code, words)
    numbers = code[begin]
    timed = np.array([is_timed(template) for template in recording.templates])[numbers]
    place = np.cumsum(timed) - 1
    found: list[Ints] = [np.zeros(0, np.int64)]
    events: list[Ints] = [np.zeros(0, np.int64)]
    for template in np.unique(numbers).tolist():
        chosen = np.flatnonzero((numbers == template) & timed)
        for i, leaf in enumerate(leaf_roles(recording.templates[template])):
            if not isinstance(leaf.form, RegisterForm):
                found.append(code[begin[chosen] + 2 + 2 * i])
                events.append(place[chosen])
    storage, event = np.concatenate(found), np.concatenate(events)
    return [np.unique(event[storage == number]) for number in storages]
