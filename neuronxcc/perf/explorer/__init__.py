"""A prediction as the tables that Neuron Explorer has of a profile: :func:`tables_of`, `save`.

They have the names and fields of schema 7.4.0, and `is_simulation` is true in their metadata.
`tables_of` needs nothing; `save` writes Parquet with pyarrow, an optional package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from neuronxcc.perf.advice import advice_for
from neuronxcc.perf.estimate import complete, edges
from neuronxcc.perf.explorer.schema import NOT_MODELLED, RECOMMENDATION, SCHEMA
from neuronxcc.perf.explorer.spans import merged
from neuronxcc.perf.explorer.summary import MULTIPLIERS, summary_of
from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import ENGINES, QUEUES, SCALAR, TENSOR, VECTOR, Ints, Work
from neuronxcc.perf.usage import Packets, memory_steps, packets_of, rate_steps
from neuronxcc.tables import VERSION, Field, save_table

__all__ = ["SCHEMA", "VERSION", "save", "tables_of"]

_PS = 1000  # picoseconds in a nanosecond
Table = dict[str, Any]
_ARRAY = 128  # rows and columns of the Tensor Engine
_TYPES = {"i64": np.int64, "i32": np.int32, "f32": np.float32, "f64": np.float64, "bool": np.bool_}
_QUEUE_TYPES = {"": "data", "hardware": "hardware_dynamic", "gpsimd": "software_dynamic"}


def tables_of(made: Prediction) -> dict[str, Table]:
    """Return the tables by name: columns by field, arrays of equal length; None is null.

    All iterations of loops are in them, those too that a prediction leaves out.
    """
    made = complete(made)
    packets = packets_of(made)
    tables = {
        "Metadata": _metadata(made),
        "Instruction": _instructions(made),
        "DmaPacketAggregated": _transfers(made, packets),
        "DmaPacket": _packets(made, packets),
        "DmaQueuesInfo": _queues(made),
        "DmaUsage": _dma_usage(made, packets),
        "PendingDma": _pending(made),
        "Flow": _flow(made),
        "SbufUsage": _memory(made, "sbuf"),
        "PsumUsage": _memory(made, "psum"),
        "Warning": _warnings(made),
    }
    tables["ActiveTime"] = _active(tables["Instruction"])
    tables["OpcodeSummary"] = _opcodes(tables["Instruction"], tables["Metadata"])
    tables = {name: _complete(name, table) for name, table in tables.items()}
    summary = {name: [value] for name, value in summary_of(tables).items()}
    tables["Summary"] = _complete("Summary", summary)
    return tables


def save(made: Prediction, folder: str | os.PathLike[str]) -> list[Path]:
    """Write each table to a Parquet file of its name in a folder; return the paths.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the text says how it is.
    """
    about = {"profile_schema_version": VERSION, "is_simulation": "true"}
    return [
        save_table(Path(folder) / f"{name}.parquet", SCHEMA[name], table, about)
        for name, table in tables_of(made).items()
    ]


def _complete(name: str, table: Table) -> Table:
    """Return a table with all fields in their order and types; those that are missing are null."""
    rows = len(next(iter(table.values())))
    assert not table.keys() - {field.name for field in SCHEMA[name]}, name
    return {field.name: _column(field, table.get(field.name), rows) for field in SCHEMA[name]}


def _column(field: Field, values: Any, rows: int) -> Any:
    if values is None:
        assert field.nullable, field.name
        return np.full(rows, None, object)
    assert len(values) == rows, field.name
    if field.kind == "str" or (isinstance(values, np.ndarray) and values.dtype.kind == "O"):
        return np.array(values, object)
    return np.array(values, _TYPES[field.kind])


def _warnings(made: Prediction) -> Table:
    rows = [(note, NOT_MODELLED) for note in made.notes]
    rows += [(one.text, f"{RECOMMENDATION}{one.rule}") for one in advice_for(made)]
    message, category = zip(*rows, strict=True) if rows else ((), ())
    return {"message": np.array(message, object), "category": np.array(category, object)}


def _ns(picoseconds: Ints) -> Ints:
    return picoseconds // _PS


def _metadata(made: Prediction) -> Table:
    machine, core = made.machine, made.machine.target.core
    clocks = machine.clocks
    last = -(-made.timeline.total // _PS)
    rows = {
        "profile_schema_version": VERSION,
        "ntff_version": 0,
        "num_physical_cores": made.cores,
        "vnc_enabled": made.cores > 1,
        "first_hw_timestamp": 0,
        "last_hw_timestamp": last,
        "first_ts": "0",
        "last_ts": str(last),
        "dma_ddr_bandwidth": machine.dma_gbps * 1e9,
        "num_dma_engines_per_neuroncore": core.dma_engines,
        "hbm_ddr_bandwidth": machine.hbm_gbps * 1e9,
        "tensor_engine_num_rows": _ARRAY,
        "tensor_engine_num_cols": _ARRAY,
        "tensor_engine_clock_freq": clocks[TENSOR],
        "vector_engine_clock_freq": clocks[VECTOR],
        "vector_engine_num_channels": core.sbuf.partitions,
        "scalar_engine_clock_freq": clocks[SCALAR],
        "scalar_engine_num_channels": core.sbuf.partitions,
        "gpsimd_engine_clock_freq": core.gpsimd.clock_ghz,
        "gpsimd_engine_num_channels": core.sbuf.partitions,
        # 1.4 GHz of trn1 and 1.2 of trn2 are printed, which are the Scalar Engine's.
        "neuroncore_clock_freq": clocks[SCALAR],
        "ticks_per_nanosec": 1,
        "instance_type": made.target,
        "compiler_version": f"TorchNeuron, performance model {made.model}",
        "profile_name": made.name,
        "is_simulation": True,
    }
    return {name: [value] for name, value in rows.items()}


def _by_work(made: Prediction, values: list[Any], chosen: Ints, kind: Any = object) -> Any:
    """Return for each chosen instruction what its work has."""
    column = np.empty(max(1, len(values)), kind)
    column[: len(values)] = values
    return column[made.flat.work[chosen]]


def _instructions(made: Prediction) -> Table:
    works, timeline = made.stream.works, made.timeline
    on_engine = np.array([work.queue < len(ENGINES) for work in works] or [False])
    chosen = np.flatnonzero(on_engine[made.flat.work])
    issue = np.array([made.machine.cost(work).issue for work in works] or [0], np.int64)
    start = timeline.start[chosen]
    end = start + issue[made.flat.work[chosen]]
    key = _by_work(made, [work.core * len(QUEUES) + work.queue for work in works], chosen, np.int64)
    order = np.lexsort((start, key))
    new = np.append(True, key[order][1:] != key[order][:-1])[: len(order)]
    at = np.arange(len(order))
    pc = np.empty(len(order), np.int64)
    pc[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    before = np.append(0, end[order][:-1])[: len(order)]
    wait = np.empty(len(order), np.int64)
    wait[order] = np.where(new, start[order], start[order] - before)
    places = np.array([f"{file}:{line}" for file, line in made.stream.lines] or [""], object)
    moves = _by_work(made, [work.transfer is not None for work in works], chosen, bool)
    ends = _ns(end)
    flops = [work.product.flops if work.product else 0 for work in works]
    adjusted = [_adjusted(made, work) for work in works]
    turned = [bool(work.product and work.product.transpose) for work in works]
    elements = [work.product.columns * work.product.moving if work.product else 0 for work in works]

    def of_products(values: list[int], *, transposes: bool = False) -> Any:
        kept = [
            value * (turn or not transposes) for value, turn in zip(values, turned, strict=True)
        ]
        return _by_work(made, kept, chosen, np.int64)

    return {
        "start_ts": _ns(start),
        "end_ts": ends,
        "duration_ns": ends - _ns(start),
        "engine": _by_work(made, [QUEUES[work.queue] for work in works], chosen),
        "pcore_idx": _by_work(made, [work.core for work in works], chosen, np.int64),
        "opcode": _by_work(made, [work.name for work in works], chosen),
        "operands": _by_work(made, [_operands(work) for work in works], chosen),
        "id": chosen,
        "pc": pc,
        "bir_id": np.array([f"I-{number}" for number in chosen.tolist()], object),
        "evt_wait_time_ns": _ns(wait),
        "nki_source_location": places[made.flat.line[chosen]],
        "dma_trigger_start_ts": _where(moves, _ns(start)),
        "dma_trigger_end_ts": _where(moves, ends),
        "tensor_instruction_type": _by_work(
            made, [_kind(work.product.dtype) if work.product else None for work in works], chosen
        ),
        "tensor_elements": of_products(elements),
        "raw_flops": of_products(flops),
        "adjusted_flops": of_products(adjusted),
        "tensor_elements_transpose": of_products(elements, transposes=True),
        "flops_transpose": of_products(flops, transposes=True),
        "adjusted_flops_transpose": of_products(adjusted, transposes=True),
    }


def _where(known: Any, values: Ints) -> Any:
    """Return values, null where they are not known."""
    found = values.astype(object)
    found[~known] = None
    return found


def _kind(dtype: str) -> str:
    """Return how Explorer calls a type of products."""
    if dtype.endswith("_x4"):
        return "MX"
    known = {"float32": "FP32", "tfloat32": "TF32", "bfloat16": "BF16", "float16": "FP16"}
    return known.get(dtype, "FP8" if dtype.startswith("float8") else dtype.upper())


def _adjusted(made: Prediction, work: Work) -> int:
    if work.product is None:
        return 0
    kind = _kind(work.product.dtype)
    factor = MULTIPLIERS.get(kind, 1.0)
    if kind == "FP8" and made.machine.target.core.generation == 2:
        factor = 1.0
    return round(work.product.flops * factor)


def _operands(work: Work) -> str:
    product = work.product
    if product is None:
        return "" if work.transfer is None else f"{work.transfer.nbytes} bytes"
    return f"{product.dtype} {product.rows}x{product.columns}, {product.moving} rows"


def _transfers(made: Prediction, packets: Packets) -> Table:
    works = made.stream.works
    chosen = np.unique(packets.number)
    count = len(made.flat.work)
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(start, packets.number, packets.start)
    np.maximum.at(end, packets.number, packets.end)
    start, end = _ns(start[chosen]), _ns(end[chosen])
    moved = _by_work(made, [w.transfer.nbytes if w.transfer else 0 for w in works], chosen, int)
    text = np.full(len(chosen), "", object)
    source, dest = (
        _by_work(made, [w.sides[i] if w.transfer else "" for w in works], chosen) for i in (0, 1)
    )
    variable = ["spill" if w.transfer and w.transfer.spill else "" for w in works]
    empty = dict.fromkeys(
        ("read_sbuf_partitions", "read_shape", "read_offset", "read_steps", "semaphore_id",
         "write_sbuf_partitions", "write_shape", "write_offset", "write_steps"), text,
    )  # fmt: skip
    return empty | {
        "start_ts": start,
        "end_ts": end,
        "duration_ns": end - start,
        "id": chosen,
        "pcore_idx": _by_work(made, [work.core for work in works], chosen, np.int64),
        "block_id": np.zeros(len(chosen), np.int32),
        "queue_idx": _by_work(made, [work.queue for work in works], chosen, np.int64),
        "queue_name": _by_work(made, [QUEUES[work.queue] for work in works], chosen),
        "queue_type": _by_work(made, [_queue_type(work) for work in works], chosen),
        "op": _by_work(made, [work.name for work in works], chosen),
        "variable": _by_work(made, variable, chosen),
        "read_bytes": moved,
        "write_bytes": moved,
        "transfer_bytes": moved,
        "throughput": moved / np.maximum(end - start, 1) * 1e9,
        "source": source,
        "dest": dest,
        "read_num_sbuf_partitions": np.zeros(len(chosen), np.int32),
        "write_num_sbuf_partitions": np.zeros(len(chosen), np.int32),
        "is_transpose_mode": _by_work(
            made, [work.name == "dma_transpose" for work in works], chosen, bool
        ),
    }


def _queue_type(work: Work) -> str:
    return _QUEUE_TYPES[work.transfer.made] if work.transfer else ""


def _packets(made: Prediction, packets: Packets) -> Table:
    works, number = made.stream.works, packets.number
    start, end = _ns(packets.start), _ns(packets.end)
    parts = np.bincount(number, minlength=len(made.flat.work))
    new = np.append(True, number[1:] != number[:-1])[: len(number)]
    at = np.arange(len(number))
    index = at - np.maximum.accumulate(np.where(new, at, 0))
    whole = _by_work(made, [w.transfer.nbytes if w.transfer else 0 for w in works], number, int)
    # Bytes that do not divide are those of the first packet.
    share = whole // np.maximum(parts[number], 1)
    share = share + np.where(index == 0, whole - share * parts[number], 0)
    return {
        "start_ts": start,
        "end_ts": end,
        "duration_ns": end - start,
        "pcore_idx": packets.core,
        "id": at,
        "packet_idx": index,
        "packet_aggregation_id": number,
        "engine_idx": packets.engine,
        "read_bytes": share,
        "write_bytes": share,
        "transfer_bytes": share,
        "throughput": share / np.maximum(end - start, 1) * 1e9,
        "queue_type": _by_work(made, [_queue_type(work) for work in works], number),
        "queue_name": _by_work(made, [QUEUES[work.queue] for work in works], number),
        "queue_idx": _by_work(made, [work.queue for work in works], number, np.int64),
        "crc": np.zeros(len(number), np.int64),
    }


def _queues(made: Prediction) -> Table:
    used = sorted(
        {(w.core, w.queue, engine, _queue_type(w)) for w in made.stream.works if w.transfer
         for engine in range(made.machine.target.core.dma_engines)}
    )  # fmt: skip
    return {
        "name": np.array([QUEUES[queue] for _, queue, _, _ in used], object),
        "type": np.array([kind for _, _, _, kind in used], object),
        "pcore_idx": np.array([core for core, _, _, _ in used], np.int64),
        "idx": np.array([queue for _, queue, _, _ in used], np.int64),
        "engine_idx": np.array([engine for _, _, engine, _ in used], np.int64),
        "axi_port": np.zeros(len(used), np.int64),
        "dram_channel": np.zeros(len(used), np.int64),
    }


def _over_cores(made: Prediction, rows: list[Table]) -> Table:
    """Return the rows of all cores, and whose they are."""
    cores = np.repeat(np.arange(made.cores), [len(next(iter(row.values()))) for row in rows])
    return {n: np.concatenate([row[n] for row in rows]) for n in rows[0]} | {"pcore_idx": cores}


def _dma_usage(made: Prediction, packets: Packets) -> Table:
    rows: list[Table] = []
    for core in range(made.cores):
        steps = rate_steps(made, core, packets)
        moved = np.append(0, np.cumsum(steps.value[:-1] * np.diff(steps.time) / 1e12))
        rows.append(
            {
                "timestamp": _ns(steps.time),
                "current_throughput": steps.value,
                "total_transfer_bytes": np.round(moved[: len(steps.time)]).astype(np.int64),
            }
        )
    return _over_cores(made, rows)


def _pending(made: Prediction) -> Table:
    moves = made.timeline.moves
    core = np.array([work.core for work in made.stream.works] or [0])[made.flat.work[moves[:, 0]]]
    rows = []
    for number in range(made.cores):
        mine = moves[core == number]
        time = np.concatenate([mine[:, 1], made.timeline.end[mine[:, 0]]])
        change = np.repeat((1, -1), len(mine))
        moments, where = np.unique(_ns(time), return_inverse=True)
        sums = np.bincount(where, change, minlength=len(moments)).astype(np.int64)
        rows.append({"timestamp": moments, "value": np.cumsum(sums)})
    return _over_cores(made, rows)


def _memory(made: Prediction, memory: str) -> Table:
    core = made.machine.target.core
    size = (core.sbuf if memory == "sbuf" else core.psum).total_bytes
    rows: list[Table] = []
    for number in range(made.cores):
        steps = memory_steps(made, number, memory)
        rows.append({"timestamp": _ns(steps.time), "avg_util_percent": steps.value / size})
    return _over_cores(made, rows)


def _flow(made: Prediction) -> Table:
    found = edges(made)
    after = np.repeat(np.arange(len(made.flat.work)), np.diff(found.first))
    own = np.flatnonzero(found.own >= 0)
    before, after = np.append(found.other, found.own[own]), np.append(after, own)
    tables = np.array(
        ["DmaPacketAggregated" if w.transfer else "Instruction" for w in made.stream.works] or [""],
        object,
    )[made.flat.work]
    gap = made.timeline.start[after] - made.timeline.end[before]
    return {
        "in_id": before,
        "out_id": after,
        "in_table": tables[before],
        "out_table": tables[after],
        "gap_time": _ns(gap),
    }


def _active(rows: Table) -> Table:
    found: list[tuple[int, int, str, int]] = []
    for core in np.unique(rows["pcore_idx"]).tolist():
        for engine in ENGINES:
            mine = (rows["pcore_idx"] == core) & (rows["engine"] == engine)
            start, end = merged(rows["start_ts"][mine], rows["end_ts"][mine])
            found += [(a, b, engine, core) for a, b in zip(start, end, strict=True)]
    return {
        "start_ts": np.array([row[0] for row in found], np.int64),
        "end_ts": np.array([row[1] for row in found], np.int64),
        "engine": np.array([row[2] for row in found], object),
        "pcore_idx": np.array([row[3] for row in found], np.int64),
        "duration_ns": np.array([row[1] - row[0] for row in found], np.int64),
    }


def _opcodes(rows: Table, about: Table) -> Table:
    total = about["last_hw_timestamp"][0] - about["first_hw_timestamp"][0]
    found: list[tuple[str, str, int, int, int]] = []
    for engine, opcode in sorted(set(zip(rows["engine"], rows["opcode"], strict=True))):
        mine = (rows["engine"] == engine) & (rows["opcode"] == opcode)
        start, end = merged(rows["start_ts"][mine], rows["end_ts"][mine])
        time = int(rows["duration_ns"][mine].sum())
        found.append((engine, opcode, int(mine.sum()), time, int((end - start).sum())))
    return {
        "engine": np.array([row[0] for row in found], object),
        "opcode": np.array([row[1] for row in found], object),
        "instruction_count": np.array([row[2] for row in found], np.int64),
        "instruction_time_ns": np.array([row[3] for row in found], np.int64),
        "active_time_ns": np.array([row[4] for row in found], np.int64),
        "active_time_percent": np.array([row[4] / total if total else 0 for row in found]),
    }
