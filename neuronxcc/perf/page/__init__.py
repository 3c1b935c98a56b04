"""A prediction as one HTML page that needs nothing else, no network and no server: :func:`save`.

Engines and queues over time, with zoom; what each instruction waits for; memories and the rate of
transfers beside them; the user's lines; a summary and advice. `contents` is what the page knows.
"""

from __future__ import annotations

import base64
import heapq
import html
import json
import linecache
import os
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronxcc.files import write_whole
from neuronxcc.perf.advice import advice_for
from neuronxcc.perf.estimate import edges
from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import ENGINES, QUEUES, Ints, Work
from neuronxcc.perf.usage import Packets, Steps, memory_steps, packets_of, rate_steps

__all__ = ["MOST", "contents", "render", "save"]

#: Instructions that a page has at most: those that start first.
MOST: Final = 200_000
_STEPS = 50_000  # moments at which a line of a chart changes, at most
_LANES = 8  # rows of a queue's transfers, of which several are under way at once
_PARTS = ("page.css", "page.js")
_US = 1e6


def save(made: Prediction, path: str | os.PathLike[str]) -> Path:
    """Write the page to a file, which is replaced if there is one; return its path.

    Args:
        made: of a kernel or of a device program.
        path: of the file, such as "kernel.html"; any browser of these years opens it.
    """
    where = Path(path)
    write_whole(where, render(made).encode())
    return where


def render(made: Prediction) -> str:
    """Return the page."""
    # Within a script "<" could begin another one, or end it.
    known = json.dumps(contents(made), separators=(",", ":")).replace("<", "\\u003c")
    page, *parts = (
        (files(__package__) / name).read_text("utf-8") for name in ("page.html", *_PARTS)
    )
    # The page's own text first: what a program is called may look like a place in it.
    for name, text in zip(_PARTS, parts, strict=True):
        page = page.replace(f"{{{{ {name} }}}}", text)
    title = html.escape(f"{made.name} on {made.target}")
    before, _, rest = page.partition("{{ title }}")
    middle, _, after = rest.partition("{{ contents }}")
    return f"{before}{title}{middle}{known}{after}"


def contents(made: Prediction) -> dict[str, Any]:
    """Return what the page knows, as JSON has it.

    "columns" has a row for each instruction that is shown: numbers as base64 of zlib of
    little-endian items. Times are picoseconds. "solid" is when an engine is busy with it, or when
    bytes of a transfer move.
    """
    packets = packets_of(made)
    shown = _shown(made)
    return {
        "about": _about(made, len(shown)),
        "advice": [advice._asdict() for advice in advice_for(made)],
        "works": [_work(work) for work in made.stream.works],
        "table": _table(made),
        "lines": _lines(made),
        "tracks": _tracks(made),
        "charts": _charts(made, packets),
        "skipped": [list(skip) for skip in made.skipped],
        "columns": _columns(made, packets, shown),
    }


def _shown(made: Prediction) -> Ints:
    """Return the instructions that the page has, in the order of the program."""
    if len(made.flat.work) <= MOST:
        return np.arange(len(made.flat.work))
    return np.sort(np.argsort(made.timeline.start, kind="stable")[:MOST])


def _about(made: Prediction, shown: int) -> dict[str, Any]:
    notes = list(made.notes)
    if shown < len(made.flat.work):
        notes.append(f"the timeline shows the first {shown} of {len(made.flat.work)} instructions")
    machine = made.machine
    return {
        "name": made.name,
        **made.facts,
        "launch_us": made.launch_us,
        "bound_by": made.bound_by,
        "instructions": made.instructions,
        "hbm_bytes": made.hbm_bytes,
        "spilled_bytes": made.spilled_bytes,
        "flops": made.flops,
        "hbm_limit": min(machine.dma_gbps, machine.hbm_gbps) * 1e9 * made.cores,
        "busy_us": made.busy_us,
        "utilisation": made.utilisation,
        "critical": made.critical,
        "notes": notes,
    }


def _work(work: Work) -> dict[str, Any]:
    moved = work.transfer
    found: dict[str, Any] = {"name": work.name}
    if moved is not None:
        found |= {"bytes": moved.nbytes, "row": moved.row, "spill": moved.spill}
    if work.product is not None:
        found["product"] = work.product._asdict()
    return found


def _table(made: Prediction) -> list[dict[str, Any]]:
    """Return by engine and instruction how many run and how long, the longest first."""
    found: dict[tuple[str, str], list[float]] = {}
    engines = made.machine.target.core.dma_engines
    for work, count in zip(made.stream.works, made.counts.tolist(), strict=True):
        cost = made.machine.cost(work)
        each = cost.moving * cost.engines / engines if cost.engines else cost.issue
        name = "dma" if work.transfer is not None else ENGINES[work.queue]
        row = found.setdefault((name, work.name), [0, 0.0])
        row[0] += count
        row[1] += each * count / _US
    rows = [
        {"engine": engine, "name": name, "count": int(count), "busy_us": busy}
        for (engine, name), (count, busy) in found.items()
        if count
    ]
    return sorted(rows, key=lambda row: -row["busy_us"])


def _lines(made: Prediction) -> list[dict[str, Any]]:
    """Return the user's lines in the order of the stream, with their text and their shares."""
    shares = {(share.file, share.line): share for share in made.lines}
    found = []
    for file, line in made.stream.lines:
        share = shares.get((file, line))
        found.append(
            {
                "file": os.path.basename(file),  # noqa: PTH119 (a text, no path)
                "line": line,
                "text": linecache.getline(file, line).strip(),
                "instructions": share.instructions if share else 0,
                "busy_us": share.busy_us if share else 0.0,
                "share": share.share if share else 0.0,
            }
        )
    return found


def _tracks(made: Prediction) -> list[dict[str, Any]]:
    used = sorted({(work.core, work.queue) for work in made.stream.works})
    return [
        {"core": core, "name": QUEUES[queue], "engine": queue < len(ENGINES)}
        for core, queue in used
    ]


def _charts(made: Prediction, packets: Packets) -> list[dict[str, Any]]:
    """Return the lines over time: the rate of transfers, and how full the memories are."""
    core = made.machine.target.core
    limit = min(made.machine.dma_gbps, made.machine.hbm_gbps) * 1e9
    found: list[tuple[str, int, float, Steps]] = []
    for number in range(made.cores):
        found.append(("DMA", number, limit, rate_steps(made, number, packets)))
        if made.stream.tiles:
            for memory, size in (("sbuf", core.sbuf), ("psum", core.psum)):
                steps = memory_steps(made, number, memory)
                found.append((memory.upper(), number, float(size.total_bytes), steps))
    return [
        {
            "name": name,
            "core": number,
            "limit": most,
            "unit": "B/s" if name == "DMA" else "B",
            "time": _packed(steps.time, "<f8"),
            "value": _packed(steps.value, "<f8"),
        }
        for name, number, most, long in found
        for steps in (_thinned(long),)
    ]


def _thinned(steps: Steps) -> Steps:
    """Return steps of which neighbours are one, with the higher value, where they are too many."""
    count = len(steps.time)
    if count <= _STEPS:
        return steps
    first = np.arange(0, count, -(-count // _STEPS))
    return Steps(steps.time[first], np.maximum.reduceat(steps.value, first))


def _columns(made: Prediction, packets: Packets, shown: Ints) -> dict[str, Any]:
    flat, timeline = made.flat, made.timeline
    works = made.stream.works
    costs = [made.machine.cost(work) for work in works]
    issue = np.array([cost.issue for cost in costs] or [0], np.int64)
    begin, until = timeline.start.copy(), timeline.start + issue[flat.work]
    moving = np.array([cost.engines > 0 for cost in costs] or [False])[flat.work]
    begin[moving], until[moving] = np.iinfo(np.int64).max, 0
    np.minimum.at(begin, packets.number, packets.start)
    np.maximum.at(until, packets.number, packets.end)
    tracks = {(t["core"], QUEUES.index(t["name"])): i for i, t in enumerate(_tracks(made))}
    track = np.array([tracks[work.core, work.queue] for work in works] or [0])[flat.work]
    place = np.full(len(flat.work) + 1, -1, np.int64)
    place[shown] = np.arange(len(shown))
    first, other, own = _waits(made, shown, place)
    return {
        "count": len(shown),
        "work": _packed(flat.work[shown], "<i4"),
        "line": _packed(flat.line[shown], "<i4"),
        "track": _packed(track[shown], "<i4"),
        "lane": _packed(_lanes(made, track[shown], shown), "<i4"),
        "start": _packed(timeline.start[shown], "<f8"),
        "solid_from": _packed(begin[shown], "<f8"),
        "solid_to": _packed(until[shown], "<f8"),
        "end": _packed(timeline.end[shown], "<f8"),
        "cause": _packed(place[timeline.cause[shown]], "<i4"),
        "first": _packed(first, "<i4"),
        "other": _packed(other, "<i4"),
        "own": _packed(own, "<i4"),
    }


def _waits(made: Prediction, shown: Ints, place: Ints) -> tuple[Ints, Ints, Ints]:
    """Return what each instruction that is shown waits for, of those that are shown."""
    found = edges(made)
    sizes = np.diff(found.first)
    after = place[np.repeat(np.arange(len(sizes)), sizes)]
    other = place[found.other]
    kept = (after >= 0) & (other >= 0)
    first = np.zeros(len(shown) + 1, np.int64)
    np.cumsum(np.bincount(after[kept], minlength=len(shown)), out=first[1:])
    return first, other[kept], place[found.own[shown]]


def _lanes(made: Prediction, track: Ints, shown: Ints) -> Ints:
    """Return rows so that what overlaps lies side by side, as far as there are rows.

    Of an engine only the waiting for results overlaps, and that needs no room.
    """
    found = np.zeros(len(track), np.int64)
    queues = np.array([not t["engine"] for t in _tracks(made)] or [False])
    mine = np.flatnonzero(queues[track]) if len(track) else track
    start, end = made.timeline.start[shown[mine]], made.timeline.end[shown[mine]]
    free: dict[int, list[tuple[int, int]]] = {}  # lanes by track, as a heap: free from, number
    rows = list(zip(track[mine].tolist(), start.tolist(), end.tolist(), strict=True))
    for i in np.argsort(start, kind="stable").tolist():
        number, begin, until = rows[i]
        lanes = free.setdefault(number, [])
        if lanes and (lanes[0][0] <= begin or len(lanes) == _LANES):
            _, lane = heapq.heappop(lanes)
        else:
            lane = len(lanes)
        found[mine[i]] = lane
        heapq.heappush(lanes, (until, lane))
    return found


def _packed(values: npt.NDArray[Any], kind: str) -> dict[str, str]:
    raw = np.ascontiguousarray(values, kind).tobytes()
    return {"kind": kind, "data": base64.b64encode(zlib.compress(raw, 6)).decode()}
