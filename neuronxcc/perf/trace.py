"""A prediction as a trace that https://ui.perfetto.dev opens: JSON of trace events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from neuronxcc.files import write_whole
from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import QUEUES

__all__ = ["events", "save"]

_US = 1e6


def events(made: Prediction) -> list[dict[str, Any]]:
    """Return the trace events: a process for each core, a thread for each queue.

    An instruction lasts until its results can be read. Of a loop that repeats itself only the
    iterations that were simulated are there.
    """
    found: list[dict[str, Any]] = []
    used = {(work.core, work.queue) for work in made.stream.works}
    for core in sorted({core for core, _ in used}):
        name = {"name": f"{made.target} core {core} (simulated)"}
        found.append({"ph": "M", "name": "process_name", "pid": core, "args": name})
    for core, queue in sorted(used):
        thread = {"ph": "M", "name": "thread_name", "pid": core, "tid": queue}
        found.append(thread | {"args": {"name": QUEUES[queue]}})
    rows = zip(
        made.flat.work.tolist(),
        made.flat.line.tolist(),
        made.timeline.start.tolist(),
        made.timeline.end.tolist(),
        strict=True,
    )
    for number, line, start, end in rows:
        work = made.stream.works[number]
        args: dict[str, Any] = {}
        if made.stream.lines:
            file, at = made.stream.lines[line]
            args["line"] = f"{os.path.basename(file)}:{at}"  # noqa: PTH119 (a text, no path)
        if work.transfer is not None:
            args["bytes"] = work.transfer.nbytes
        found.append(
            {
                "ph": "X",
                "name": work.name,
                "pid": work.core,
                "tid": work.queue,
                "ts": start / _US,
                "dur": (end - start) / _US,
                "args": args,
            }
        )
    return found


def save(made: Prediction, path: str | os.PathLike[str]) -> Path:
    """Write a trace to a file, which is replaced if there is one; return its path."""
    content = {"displayTimeUnit": "ns", "otherData": made.facts, "traceEvents": events(made)}
    where = Path(path)
    write_whole(where, json.dumps(content).encode())
    return where
