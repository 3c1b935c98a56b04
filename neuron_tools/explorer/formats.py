"""What `neuron-explorer view` writes: JSON, a trace for Perfetto, summaries, Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuron_tools.explorer.session import Event, Session
from neuron_tools.explorer.tables import SCHEMA, Rows, place_of, summary_of, tables_of
from neuronxcc.tables import Field, save_table

_GROUPS = 1000  # rows of a core from here on are groups of ranks


def cores_of(session: Session) -> list[int]:
    """Return the cores that did something."""
    return sorted({event.core for event in session.events if event.source == "neuron_hw"})


def summary_json(session: Session) -> str:
    """Return the summary of each core, by the name of its profile."""
    found = {f"profile_nc_{core}": summary_of(session.events, core) for core in cores_of(session)}
    return json.dumps(found, indent=2)


def summary_text(session: Session) -> str:
    """Return the summary as lines of name and value, below each core's number."""
    lines = []
    for core in cores_of(session):
        lines.append(f"nc_idx {core}")
        found = summary_of(session.events, core)
        width = max(map(len, found), default=0)
        lines += [f"  {name:<{width}} {_number(value)}" for name, value in found.items()]
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def system_json(session: Session) -> str:
    """Return the documented document of a system profile."""
    instance, process = place_of(session)
    memory = [sample for sample in session.memory if sample.of == "used_bytes"]
    percent = {s.time: s.value for s in session.memory if s.of == "used_percent"}
    document = {
        "trace_events": [
            {
                "duration": event.end - event.start,
                "group": group_of(event, instance, process),
                "id": number,
                "instance_id": instance,
                "lnc_idx": event.core if event.core >= 0 else None,
                "name": event.name,
                "parent_id": None,
                "process_id": process,
                "size": event.facts.get("bytes", event.facts.get("Bytes")),
                "tensor_id": None,
                "tensor_name": None,
                "thread_id": event.row,
                "timestamp": event.start,
                "type": event.kind,
            }
            for number, event in enumerate(session.events)
        ],
        "mem_usage": [
            {"duration": 0, "percent_usage": percent.get(sample.time), "timestamp": sample.time,
             "usage": sample.value, "instance_id": instance}
            for sample in memory
        ],
        "cpu_util": [
            {"cpu_id": sample.of, "util": sample.value, "timestamp": sample.time, "duration": 0}
            for sample in session.cpu
        ],
    }  # fmt: skip
    return json.dumps(document)


def device_json(events: list[Event]) -> str:
    """Return the documented document of a device profile.

    Its "instructions" are operators and steps of programs: an emulated core's own time is not that
    of engines. Timestamps are nanoseconds from the first.
    """
    hardware = [event for event in events if event.source == "neuron_hw"]
    first = min((event.start for event in hardware), default=0)
    cores = sorted({event.core for event in hardware})
    document = {
        "summary": [{"nc_idx": core, **summary_of(events, core)} for core in cores],
        "instruction": [
            {
                "timestamp": event.start - first,
                "duration": event.end - event.start,
                "label": event.name,
                "hlo_name": event.facts.get("program", ""),
                "opcode": event.kind,
                "operands": "",
                "nki_source_location": event.facts.get("source", ""),
                "nc_idx": event.core,
            }
            for event in hardware
            if event.kind != "program"
        ],
    }
    return json.dumps(document)


def group_of(event: Event, instance: str, process: int) -> str:
    """Return the row of an event, as the system trace names them."""
    if event.source == "neuron_hw":
        return f"{instance}/PID:{process}/neuron_hw/NC:{event.core}"
    if event.source == "neuron_rt":
        return f"{instance}/PID:{process}/neuron_rt/NC:{event.core}"
    return f"{instance}/PID:{process}/framework/TID:{event.row}"


def perfetto(session: Session) -> str:
    """Return a trace that ui.perfetto.dev and chrome://tracing open: JSON, not protobuf."""
    instance, process = place_of(session)
    tracks: dict[tuple[str, int], int] = {}
    rows: list[dict[str, Any]] = []
    first = min((event.start for event in session.events), default=0)
    for event in session.events:
        group = group_of(event, instance, process)
        pid = tracks.setdefault((group, 0), len(tracks) + 1)
        if (group, event.row + 1) not in tracks:
            tracks[group, event.row + 1] = 0
            name = f"group {event.row}" if event.row >= _GROUPS and event.core >= 0 else (
                f"stream {event.row}" if event.core >= 0 else f"thread {event.row}"
            )  # fmt: skip
            rows += [
                _named("process_name", pid, 0, group),
                _named("thread_name", pid, event.row, name),
            ]
        rows.append(
            {"ph": "X", "name": event.name, "cat": event.kind, "pid": pid, "tid": event.row,
             "ts": (event.start - first) / 1000, "dur": (event.end - event.start) / 1000,
             "args": event.facts}
        )  # fmt: skip
    for name, samples in (("cpu", session.cpu), ("memory", session.memory)):
        rows += [
            {"ph": "C", "name": f"{name} {sample.of}", "pid": 0, "ts": (sample.time - first) / 1000,
             "args": {"value": sample.value}}
            for sample in samples
        ]  # fmt: skip
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ns"})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def save_tables(session: Session, folder: Path) -> list[Path]:
    """Write each table as Parquet; returns the files.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
    """
    return [
        _save(rows, name, folder / f"{name}.parquet") for name, rows in tables_of(session).items()
    ]


def _save(rows: Rows, name: str, path: Path) -> Path:
    fields = SCHEMA.get(name)
    if fields is None:  # SchemaFields
        fields = tuple(
            Field(key, "bool" if isinstance(value, bool) else "str", nullable=True)
            for key, value in rows[0].items()
        )
    columns = {f.name: [row.get(f.name) for row in rows] for f in fields}
    return save_table(path, fields, columns)
