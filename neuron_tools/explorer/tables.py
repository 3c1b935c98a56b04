"""A profile as tables of Neuron Explorer's schema 7.4.0 (profile-schema-reference.rst).

A table is a list of rows by field; null is None. Times are nanoseconds. What the reference has and
an emulated device can't know (semaphores, packets of DMA) is not there; a prediction of a kernel
has more (`neuronxcc.perf.explorer`, read by `predicted`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from neuron_tools.explorer.session import Event, Session
from neuronxcc.tables import Field, fields_of

Rows = list[dict[str, Any]]


_TABLES: Final = {
    "SystemProfileEvents": (
        "What the cores, the runtime and the framework did",
        """
        id:i64 name:str start_ts:i64 end_ts:i64 duration_ns:i64 trace_event_source:str
        instance_id:str process_id:i64 thread_id:i64 nc_idx:i64? worker_gid:i64?
        framework_stream_id:str? extra_attributes_json:str?
        """,
    ),
    "SystemProfileMetadata": (
        "When the profile was taken, and of what",
        """
        first_ts:str last_ts:str first_ts_ns:str last_ts_ns:str ntff_version:i64
        hbm_capacity_bytes:i64
        """,
    ),
    "CpuUsage": (
        "Use of the host's processors",
        "timestamp:i64 util_percent:f32 cpu_id:str instance_id:str",
    ),
    "HostMemUsage": (
        "Use of the host's memory: by the process in bytes, of the host's in percent",
        "timestamp:i64 used_bytes:i64 used_percent:f32 instance_id:str",
    ),
    "DeviceProfileList": (
        "The cores that did something",
        "device_profile_name:str instance_id:str process_id:i64 nc_id:i64 session_id:i64?",
    ),
    "CcOp": (
        "Collectives and messages",
        """
        start_ts:i64 end_ts:i64 duration_ns:i64 operation:str algorithm:str num_elements:i64
        dtype:str op_id:i64 stream_id:i64 stream_index:i64 trigger_engine:str input_size:i64?
        algorithm_bandwidth:f32? replica_group:str?
        """,
    ),
    "Summary": (
        "One row for each core, by the formulas of the reference",
        """
        nc_idx:i64 is_simulation:bool total_time:f32? event_count:i64? total_active_time:f32?
        total_active_time_percent:f32? dma_transfer_count:i64? dma_transfer_total_bytes:i64?
        dma_transfer_average_bytes:f32? dma_transfer_time:f32? dma_active_time:f32?
        dma_active_time_percent:f32? cc_op_count:i64? cc_op_time:f32? cc_op_active_time:f32?
        cc_op_active_time_percent:f32?
        """,
    ),
}


#: Fields by table. `nc_idx` and `is_simulation` of Summary are ours: whose a row is, and whether
#: its times were predicted.
SCHEMA: Final = {name: fields_of(text) for name, (_, text) in _TABLES.items()}


def schema_rows() -> Rows:
    """Return the table SchemaFields: a row for each field of each table."""
    return rows_of(SCHEMA, {name: text for name, (text, _) in _TABLES.items()})


def rows_of(schema: Mapping[str, Sequence[Field]], descriptions: Mapping[str, str]) -> Rows:
    """Return a row for each field of each table of a schema."""
    return [
        {
            "table_name": name,
            "table_description": descriptions.get(name, ""),
            "field_name": field.name,
            "field_description": "",
            "field_type": field.kind,
            "field_required": not field.nullable,
        }
        for name, fields in schema.items()
        for field in fields
    ]


def tables_of(session: Session) -> dict[str, Rows]:
    """Return the tables by name; one without rows is left out, as documented."""
    instance, process = place_of(session)
    starts = [event.start for event in session.events] or [0]
    ends = [event.end for event in session.events] or [0]
    tables: dict[str, Rows] = {
        "SystemProfileEvents": _events(session, instance, process),
        "SystemProfileMetadata": [
            {
                "first_ts": str(min(starts)),
                "last_ts": str(max(ends)),
                "first_ts_ns": str(min(starts)),
                "last_ts_ns": str(max(ends)),
                "ntff_version": 1,
                "hbm_capacity_bytes": session.info.get("hbm_bytes", 0),
            }
        ],
        "CpuUsage": [
            {"timestamp": sample.time, "util_percent": sample.value, "cpu_id": sample.of,
             "instance_id": instance}
            for sample in session.cpu
        ],
        "HostMemUsage": _memory(session, instance),
        "DeviceProfileList": [
            {"device_profile_name": f"profile_nc_{core}", "instance_id": instance,
             "process_id": process, "nc_id": core, "session_id": 0}
            for core in cores_of(session)
        ],
        "CcOp": [_collective(n, e) for n, e in enumerate(session.events)
                 if e.kind == "communication"],
        "Summary": summaries(session),
        "SchemaFields": schema_rows(),
    }  # fmt: skip
    return {name: rows for name, rows in tables.items() if rows}


def _events(session: Session, instance: str, process: int) -> Rows:
    return [
        {
            "id": number,
            "name": event.name,
            "start_ts": event.start,
            "end_ts": event.end,
            "duration_ns": event.end - event.start,
            "trace_event_source": event.source,
            "instance_id": instance,
            "process_id": process,
            "thread_id": event.row,
            "nc_idx": event.core if event.core >= 0 else None,
            "worker_gid": session.info.get("rank"),
            "framework_stream_id": str(event.row) if event.source == "neuron_hw" else None,
            "extra_attributes_json": json.dumps({"kind": event.kind, **event.facts}),
        }
        for number, event in enumerate(session.events)
    ]


def cores_of(session: Session) -> list[int]:
    """Return the cores that did something."""
    return sorted({event.core for event in session.events if event.source == "neuron_hw"})


def summaries(session: Session) -> Rows:
    """Return the rows of Summary: of each core, or the one of a prediction."""
    if session.summary is not None:
        return [{"nc_idx": 0, "is_simulation": True, **session.summary}]
    return [
        {"nc_idx": core, "is_simulation": False, **summary_of(session.events, core)}
        for core in cores_of(session)
    ]


def place_of(session: Session) -> tuple[str, int]:
    """Return the instance and the process of a profile, which its directory is named by."""
    if session.folder is None:
        return "", 0
    instance, _, process = session.folder.parent.name.rpartition("_pid_")
    return instance, int(process) if process.isdecimal() else 0


def _memory(session: Session, instance: str) -> Rows:
    by_time: dict[int, dict[str, Any]] = {}
    for sample in session.memory:
        by_time.setdefault(sample.time, {})[sample.of] = sample.value
    return [
        {"timestamp": time, **values, "instance_id": instance}
        for time, values in by_time.items()
        if {"used_bytes", "used_percent"} <= values.keys()
    ]


def _collective(number: int, event: Event) -> dict[str, Any]:
    size = int(event.facts.get("Bytes", 0))
    time = event.end - event.start
    return {
        "start_ts": event.start,
        "end_ts": event.end,
        "duration_ns": time,
        "operation": str(event.facts.get("Collective name", event.name)),
        "algorithm": "",
        "num_elements": 0,
        "dtype": str(event.facts.get("dtype", "")),
        "op_id": number,
        "stream_id": event.row,
        "stream_index": 0,
        "trigger_engine": "",
        "input_size": size,
        "algorithm_bandwidth": size / time * 1e9 if time else None,
        "replica_group": str(event.facts.get("Process Group Name", "")),
    }


def covered(events: Iterable[Event]) -> int:
    """Return the nanoseconds in which at least one of the events goes on."""
    total, until = 0, 0
    for start, end in sorted((event.start, event.end) for event in events):
        if end > until:
            total += end - max(start, until)
            until = end
    return total


def summary_of(events: Sequence[Event], core: int) -> dict[str, Any]:
    """Return the fields of Summary that can be measured, of one core. Times are seconds.

    A program's interval is not work of its own; its steps are. Shares are from 0 to 1.
    """
    mine = [e for e in events if e.core == core and e.source == "neuron_hw"]
    work = [e for e in mine if e.kind != "program"]
    copies = [e for e in work if e.kind == "copy"]
    collectives = [e for e in work if e.kind == "communication"]
    if not mine:
        return {}
    total = max(e.end for e in mine) - min(e.start for e in mine)
    moved = sum(int(e.facts.get("bytes", 0)) for e in copies)
    found: dict[str, Any] = {
        "total_time": total / 1e9,
        "event_count": len(work),
        "dma_transfer_count": len(copies),
        "dma_transfer_total_bytes": moved,
        "dma_transfer_average_bytes": moved / len(copies) if copies else 0.0,
        "cc_op_count": len(collectives),
    }
    for name, chosen in (("dma_transfer_time", copies), ("cc_op_time", collectives)):
        found[name] = sum(e.end - e.start for e in chosen) / 1e9
    for name, chosen in (
        ("total_active_time", work),
        ("dma_active_time", copies),
        ("cc_op_active_time", collectives),
    ):
        active = covered(chosen)
        found[name] = active / 1e9
        found[f"{name}_percent"] = active / total if total else 0.0
    return found
