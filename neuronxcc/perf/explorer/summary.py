"""Explorer's summary: every number from the other tables, by the formulas of its reference.

Shares ("percent") are from 0 to 1, as in public profiles. What needs a graph (flops of the model,
sizes of inputs and weights) is left out: a kernel has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from neuronxcc.perf.explorer.spans import covered

__all__ = ["MULTIPLIERS", "summary_of"]

Table = Mapping[str, Any]

_SECOND = 1e9  # nanoseconds
#: Passes of a product by type, of the reference's table of adjusted flops. Eight-bit floats take
#: half a pass from NeuronCore-v3 on.
MULTIPLIERS: Final[dict[str, float]] = {"FP32": 4, "FP8": 0.5, "UINT8": 0.5, "MX": 0.25}
_QUEUES: Final = {
    "static": ("data",),
    "software_dynamic": ("software_dynamic",),
    "hardware_dynamic": ("hardware_dynamic",),
}


def summary_of(tables: Mapping[str, Table]) -> dict[str, Any]:
    """Return the fields of the table Summary."""
    about = {name: np.array(values).tolist()[0] for name, values in tables["Metadata"].items()}
    total = (about["last_hw_timestamp"] - about["first_hw_timestamp"]) / _SECOND
    clock = about["neuroncore_clock_freq"]
    found: dict[str, Any] = {
        "total_time": total,
        "neuroncore_cycle_count": round(total * clock * 1e9),
        "total_row_count": sum(len(next(iter(t.values()))) for t in tables.values()),
        **_flops(tables, about, total),
        **_dma(tables, total),
    }
    found["dma_active_cycles"] = round(found["dma_active_time"] * clock * 1e9)
    for engine in ("tensor", "vector", "scalar", "gpsimd", "sync"):
        found |= _engine(tables, engine, total)
    instructions, packets = tables["Instruction"], tables["DmaPacket"]
    start = np.concatenate([instructions["start_ts"], packets["start_ts"]])
    end = np.concatenate([instructions["end_ts"], packets["end_ts"]])
    # None of the documented setup instructions is in a stream.
    found["total_exec_time"] = (end.max() - start.min()) / _SECOND if len(start) else 0.0
    found["total_active_time"] = covered(start, end) / _SECOND
    found["total_active_time_percent"] = _ratio(found["total_active_time"], total)
    found["event_count"] = len(start)
    return found


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _flops(tables: Mapping[str, Table], about: Table, total: float) -> dict[str, Any]:
    rows, moved = tables["Instruction"], tables["DmaPacketAggregated"]
    raw, adjusted = int(rows["raw_flops"].sum()), int(rows["adjusted_flops"].sum())
    turned = int(rows["flops_transpose"].sum())
    adjusted_turned = int(rows["adjusted_flops_transpose"].sum())
    cores = about["num_physical_cores"]
    peak = 2.0 * about["tensor_engine_num_rows"] * about["tensor_engine_num_cols"]
    peak *= about["tensor_engine_clock_freq"] * 1e9 * cores
    bandwidth = about["hbm_ddr_bandwidth"] * cores
    read = _bytes(moved, "read_bytes", moved["source"] == "hbm")
    written = _bytes(moved, "write_bytes", moved["dest"] == "hbm")
    spilled = moved["variable"] == "spill"
    intensity = _ratio(raw - turned, read + written)
    return {
        "hardware_flops": raw,
        "transpose_flops": turned,
        "adjusted_hardware_flops": adjusted,
        "adjusted_transpose_flops": adjusted_turned,
        "mm_arithmetic_intensity": intensity,
        "peak_flops_bandwidth_ratio": _ratio(peak, bandwidth),
        "hbm_read_bytes": read,
        "hbm_write_bytes": written,
        "spill_save_bytes": _bytes(moved, "write_bytes", spilled & (moved["dest"] == "hbm")),
        "spill_reload_bytes": _bytes(moved, "read_bytes", spilled & (moved["source"] == "hbm")),
        "mbu_estimated_percent": _ratio(_ratio(read + written, total), bandwidth),
        "mfu_inst_estimated_percent": _ratio(raw - turned, peak * total),
        "mfu_inst_max_achievable_estimated_percent": min(
            1.0, _ratio(intensity, _ratio(peak, bandwidth))
        ),
        "hfu_estimated_percent": _ratio(raw, peak * total),
    }


def _bytes(table: Table, column: str, chosen: Any) -> int:
    return int(table[column][chosen].sum())


def _dma(tables: Mapping[str, Table], total: float) -> dict[str, Any]:
    packets, moved = tables["DmaPacket"], tables["DmaPacketAggregated"]
    active = covered(packets["start_ts"], packets["end_ts"]) / _SECOND
    count, size = len(moved["id"]), int(moved["transfer_bytes"].sum())
    found: dict[str, Any] = {
        "dma_active_time": active,
        "dma_active_time_percent": _ratio(active, total),
        "dma_transfer_average_bytes": _ratio(size, count),
        "dma_packet_time": int(packets["duration_ns"].sum()) / _SECOND,
        "dma_transfer_time": int(moved["duration_ns"].sum()) / _SECOND,
        "dma_transfer_count": count,
        "dma_transfer_total_bytes": size,
        "dma_queue_count": len(tables["DmaQueuesInfo"]["name"]),
    }
    for name, kinds in _QUEUES.items():
        mine = np.isin(packets["queue_type"], kinds)
        whole = np.isin(moved["queue_type"], kinds)
        time = covered(packets["start_ts"][mine], packets["end_ts"][mine]) / _SECOND
        found |= {
            f"{name}_dma_active_time": time,
            f"{name}_dma_active_time_percent": _ratio(time, total),
            f"{name}_dma_packet_count": int(mine.sum()),
            f"{name}_dma_size": int(moved["transfer_bytes"][whole].sum()),
            f"{name}_dma_packet_percent": _ratio(int(mine.sum()), len(mine)),
            f"{name}_dma_size_percent": _ratio(int(moved["transfer_bytes"][whole].sum()), size),
        }
    moving = ~np.isin(packets["queue_type"], _QUEUES["static"])
    time = covered(packets["start_ts"][moving], packets["end_ts"][moving]) / _SECOND
    found["dynamic_dma_active_time_percent"] = _ratio(time, total)
    for name in ("packet_percent", "size_percent"):
        found[f"dynamic_dma_{name}"] = sum(
            found[f"{kind}_dma_{name}"] for kind in ("software_dynamic", "hardware_dynamic")
        )
    return found


def _engine(tables: Mapping[str, Table], engine: str, total: float) -> dict[str, Any]:
    rows = tables["Instruction"]
    mine = rows["engine"] == engine
    start, end = rows["start_ts"][mine], rows["end_ts"][mine]
    cores = int(rows["pcore_idx"][mine].max(initial=0)) + 1
    # Engines of several cores work at the same time; the time of the busiest one counts.
    active = max(
        covered(start[on], end[on]) / _SECOND
        for core in range(cores)
        for on in (rows["pcore_idx"][mine] == core,)
    )
    found: dict[str, Any] = {
        f"{engine}_engine_instruction_time": int((end - start).sum()) / _SECOND,
        f"{engine}_engine_active_time": active,
        f"{engine}_engine_active_time_percent": _ratio(active, total),
        f"{engine}_engine_instruction_count": int(mine.sum()),
    }
    opcode = rows["opcode"][mine]
    if engine == "tensor":
        found["matmul_instruction_count"] = int(sum(str(x).startswith("nc_matmul") for x in opcode))
    if engine == "scalar":
        chosen = np.array([str(name).startswith("activat") for name in opcode], bool)
        found["activate_instruction_time"] = int((end - start)[chosen].sum()) / _SECOND
        found["activate_instruction_count"] = int(chosen.sum())
    return found
