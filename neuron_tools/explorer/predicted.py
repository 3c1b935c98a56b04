"""Predictions of the performance model as profiles: times of a NeuronCore that nobody measured.

Two forms are read: the tables that `neuronxcc.perf.explorer.save` writes, a directory of Parquet
files with `is_simulation` in their metadata, and the document of `torch_neuronx.estimate`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neuron_tools.explorer.session import ABOUT_FILE, Event, Session, SessionError
from neuronxcc.files import read_regular
from neuronxcc.perf.explorer.schema import NOT_MODELLED, RECOMMENDATION, SCHEMA
from neuronxcc.tables import MOST_BYTES, Field, TableError, read_table

Columns = dict[str, list[Any]]
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
# What an event of the timeline is made of, by table; fields of SCHEMA.
_INSTRUCTION = (
    "start_ts", "end_ts", "engine", "pcore_idx", "opcode", "operands", "nki_source_location",
)  # fmt: skip
_TRANSFER = (
    "start_ts", "end_ts", "queue_name", "pcore_idx", "op", "transfer_bytes", "source", "dest",
    "variable",
)  # fmt: skip


def read_tables(folder: Path) -> Session:
    """Read a directory of tables.

    Raises:
        SessionError: A table is damaged, or was measured and not predicted.
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
    """
    about = _first(_columns(folder, "Metadata"))
    if not about.get("is_simulation"):
        raise SessionError(
            f"{folder / ABOUT_FILE} does not say is_simulation: it was not predicted. Tables of "
            "what hardware did are read by the vendor's neuron-explorer"
        )
    warnings = _columns(folder, "Warning")
    said = list(zip(warnings["category"], warnings["message"], strict=True))
    rules = [(kind.removeprefix(RECOMMENDATION), text) for kind, text in said
             if kind.startswith(RECOMMENDATION)]  # fmt: skip
    rows: dict[int, str] = {}
    events = [*_instructions(folder, rows), *_transfers(folder, rows)]
    return Session(
        events=sorted(events, key=lambda event: event.start),
        info={"target": about["instance_type"], "name": about["profile_name"],
              "model": about["compiler_version"]},
        folder=folder,
        rows=rows,
        summary=_known(_first(_columns(folder, "Summary"))),
        recommended=rules,
        notes=[text for kind, text in said if kind == NOT_MODELLED],
    )  # fmt: skip


def tables(folder: Path) -> dict[str, tuple[tuple[Field, ...], Columns]]:
    """Return the tables that a directory has, with their columns."""
    there = {path.stem for path in folder.glob("*.parquet")}
    return {n: (fields, _columns(folder, n)) for n, fields in SCHEMA.items() if n in there}


def _columns(folder: Path, name: str, fields: tuple[str, ...] = ()) -> Columns:
    path = folder / f"{name}.parquet"
    wanted = [field for field in SCHEMA[name] if not fields or field.name in fields]
    try:
        return read_table(path, wanted)
    except TableError as error:
        raise SessionError(str(error)) from None


def _first(columns: Columns) -> dict[str, Any]:
    return {name: values[0] if values else None for name, values in columns.items()}


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _spans(columns: Columns) -> list[dict[str, Any]]:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if any(row["end_ts"] < row["start_ts"] for row in rows):
        raise SessionError("the prediction has a row that ends before it starts")
    return rows


def _row(rows: dict[int, str], name: str) -> int:
    """The number of a row of the timeline by its name."""
    known = {text: number for number, text in rows.items()}
    number = known.get(name, len(rows))
    rows[number] = name
    return number


def _instructions(folder: Path, rows: dict[int, str]) -> list[Event]:
    return [
        Event(
            of["opcode"], "instruction", of["start_ts"], of["end_ts"], of["pcore_idx"] or 0,
            _row(rows, of["engine"]),
            _known({"operands": of["operands"] or None, "source": of["nki_source_location"]}),
        )
        for of in _spans(_columns(folder, "Instruction", _INSTRUCTION))
    ]  # fmt: skip


def _transfers(folder: Path, rows: dict[int, str]) -> list[Event]:
    return [
        Event(
            of["op"], "transfer", of["start_ts"], of["end_ts"], of["pcore_idx"] or 0,
            _row(rows, f"dma {of['queue_name']}"),
            {"bytes": of["transfer_bytes"], "from": of["source"], "to": of["dest"],
             **({"variable": of["variable"]} if of["variable"] else {})},
        )
        for of in _spans(_columns(folder, "DmaPacketAggregated", _TRANSFER))
    ]  # fmt: skip


def read_estimate(path: Path) -> Session:
    """Read the document that `python -m torch_neuronx.estimate --json FILE` writes.

    Its rows add up to the step, so each begins where the one before it ends. That is their share of
    the step and not when they run: an estimate by bytes and flops has no instructions.

    Raises:
        SessionError: It is no such document.
        OSError: It cannot be read.
    """
    content = read_regular(path, MOST_BYTES, links=True, anyone=True)
    try:
        return _estimate(json.loads(content))
    except _MALFORMED as error:
        raise SessionError(
            f"{path} is no document of `python -m torch_neuronx.estimate --json`: "
            f"{type(error).__name__}: {error}"
        ) from None


def _estimate(document: Any) -> Session:
    if document["is_simulation"] is not True:
        raise ValueError("it does not say is_simulation")
    ends = itertools.accumulate(float(row["us"]) for row in document["rows"])
    rows: dict[int, str] = {}
    events, start = [], 0
    for row, end in zip(document["rows"], ends, strict=True):
        facts = {key: row[key] for key in ("section", "layer", "bytes", "flops", "how")}
        facts["source"] = str(row["line"])
        number = _row(rows, str(row["engine"]))
        until = max(start, round(1000 * end))
        events.append(Event(str(row["operator"]), "row", start, until, 0, number, facts))
        start = until
    return Session(
        events=events,
        info={
            "target": str(document["target"]),
            "name": str(document["name"]),
            "model": f"TorchNeuron, performance model {document['model']}",
        },
        rows=rows,
        summary=_summary(document),
        recommended=[(str(one["rule"]), str(one["text"])) for one in document["advice"]],
        notes=[str(note) for note in document["notes"]],
    )


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Summary that an estimate knows."""
    found = {
        "total_time": document["step_us"] / 1e6,
        "event_count": len(document["rows"]),
        "hardware_flops": document["flops"],
        "mbu_estimated_percent": document["mbu"],
        "mfu_estimated_percent": document["mfu"],
        "hbm_read_bytes": document["read_bytes"],
        "hbm_write_bytes": document["written_bytes"],
    }
    names = {"dma": "dma_active_time", "cc": "cc_op_active_time"}
    for name, us in document["busy_us"].items():
        field = names.get(name, f"{name}_engine_active_time")
        if name in names or name in {"tensor", "vector", "scalar", "gpsimd"}:
            found |= {field: us / 1e6, f"{field}_percent": us / (document["step_us"] or 1)}
    return found
