"""What `neuron-explorer view` writes: JSON, a trace for Perfetto, summaries, Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuron_tools.explorer.session import Event, Session, SessionError
from neuron_tools.explorer.tables import SCHEMA, Rows, place_of, summaries, tables_of
from neuronxcc.tables import VERSION, Field, save_table

_GROUPS = 1000  # rows of a core from here on are groups of ranks


def summary_json(session: Session) -> str:
    """Return the summary of each core, by the name of its profile."""
    found = {f"profile_nc_{row['nc_idx']}": row for row in summaries(session)}
    return json.dumps(found, indent=2)


def summary_text(session: Session) -> str:
    """Return the summary as lines of name and value, below each core's number."""
    lines = []
    for row in summaries(session):
        lines.append(f"nc_idx {row['nc_idx']}")
        width = max(map(len, row))
        lines += [f"  {n:<{width}} {_number(v)}" for n, v in row.items() if n != "nc_idx"]
    return "\n".join(lines)


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
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
                "group": group_of(session, event),
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


def device_json(session: Session) -> str:
    """Return the documented document of a device profile.

    Its "instructions" are those of a prediction, or the operators and steps of programs that were
    measured: an emulated core's own time is not that of engines. Timestamps are nanoseconds from
    the first.
    """
    hardware = [event for event in session.events if event.source == "neuron_hw"]
    first = 0 if session.is_simulation else min((event.start for event in hardware), default=0)
    document = {
        "summary": summaries(session),
        "instruction": [
            {
                "timestamp": event.start - first,
                "duration": event.end - event.start,
                "label": event.name,
                "hlo_name": event.facts.get("program", ""),
                "opcode": event.kind,
                "engine": session.rows.get(event.row, ""),
                "operands": event.facts.get("operands", ""),
                "nki_source_location": event.facts.get("source", ""),
                "nc_idx": event.core,
            }
            for event in hardware
            if event.kind != "program"
        ],
    }
    return json.dumps(document)


def group_of(session: Session, event: Event) -> str:
    """Return the group of rows that an event is in, as the system trace names them."""
    if session.is_simulation:
        return f"{session.info['target']} NC:{event.core} (predicted)"
    instance, process = place_of(session)
    if event.source == "neuron_hw":
        return f"{instance}/PID:{process}/neuron_hw/NC:{event.core}"
    if event.source == "neuron_rt":
        return f"{instance}/PID:{process}/neuron_rt/NC:{event.core}"
    return f"{instance}/PID:{process}/framework/TID:{event.row}"


def row_name(session: Session, event: Event) -> str:
    """Return the name of an event's row in its group."""
    if session.is_simulation:
        return session.rows[event.row]
    if event.core < 0:
        return f"thread {event.row}"
    return f"{'group' if event.row >= _GROUPS else 'stream'} {event.row}"


def perfetto(session: Session) -> str:
    """Return a trace that ui.perfetto.dev and chrome://tracing open: JSON, not protobuf."""
    tracks: dict[tuple[str, int], int] = {}
    rows: list[dict[str, Any]] = []
    first = session.start
    for event in session.events:
        group = group_of(session, event)
        pid = tracks.setdefault((group, 0), len(tracks) + 1)
        if (group, event.row + 1) not in tracks:
            tracks[group, event.row + 1] = 0
            rows += [
                _named("process_name", pid, 0, group),
                _named("thread_name", pid, event.row, row_name(session, event)),
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
    about = {"is_simulation": session.is_simulation, "time_source": session.time_source}
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ns", "otherData": about})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def save_tables(session: Session, folder: Path) -> list[Path]:
    """Write each table as Parquet; returns the files.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
        SessionError: The session is an estimate, which has no tables.
    """
    about = {
        "profile_schema_version": VERSION, "is_simulation": str(session.is_simulation).lower(),
    }  # fmt: skip
    if not session.is_simulation:
        return [
            _save(rows, name, folder / f"{name}.parquet", about)
            for name, rows in tables_of(session).items()
        ]
    if session.folder is None:
        raise SessionError("an estimate has no instructions, so no tables; see docs/performance.md")
    # Read and written anew: what a directory claims to be is checked.
    from neuron_tools.explorer.predicted import tables  # noqa: PLC0415 - it needs the model

    return [
        save_table(folder / f"{name}.parquet", fields, columns, about)
        for name, (fields, columns) in tables(session.folder).items()
    ]


def _save(rows: Rows, name: str, path: Path, about: Mapping[str, str]) -> Path:
    fields = SCHEMA.get(name)
    if fields is None:  # SchemaFields
        fields = tuple(
            Field(key, "bool" if isinstance(value, bool) else "str", nullable=True)
            for key, value in rows[0].items()
        )
    columns = {f.name: [row.get(f.name) for row in rows] for f in fields}
    return save_table(path, fields, columns, about)
