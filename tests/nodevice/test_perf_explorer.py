"""Explorer's tables of a prediction, and the summary's formulas recomputed from them."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronxcc import extras
from neuronxcc.perf import ENGINES, Prediction, Stream, Transfer, Work, Writer, explorer, predict
from neuronxcc.targets import TARGETS, get_target
from tests.nodevice.perf_programs import LOAD, layered

Tables = dict[str, dict[str, Any]]


def programs() -> dict[str, Stream]:
    made = Writer("dynamic")
    for kind in ("", "hardware", "gpsimd"):
        moved = Transfer(1 << 15, 2048, made=kind)
        for cell in range(4):
            made.add(Work("dma_copy", LOAD, 0, transfer=moved), writes=[cell])
    made.add(Work("dma_copy", ENGINES.index("sync"), 0, transfer=moved._replace(hbm=2)), reads=[1])
    return {"layered": layered(), "two cores": layered(6, cores=2), "dynamic": made.stream}


@pytest.fixture(params=programs(), ids=str)
def made(request: pytest.FixtureRequest) -> Prediction:
    return predict(programs()[request.param], get_target("trn1"))


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    names = list(table)
    return [dict(zip(names, row, strict=True)) for row in zip(*table.values(), strict=True)]


def union(spans: list[tuple[int, int]]) -> float:
    """Seconds that some spans of nanoseconds cover, one nanosecond after the other."""
    covered: set[int] = set()
    for begin, end in spans:
        covered |= set(range(begin, end))
    return len(covered) / 1e9


def spans(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(int(row["start_ts"]), int(row["end_ts"])) for row in found]


def test_tables_have_the_fields_of_the_schema(made: Prediction) -> None:
    tables = explorer.tables_of(made)
    assert tables.keys() == explorer.SCHEMA.keys()
    for name, table in tables.items():
        assert list(table) == [field.name for field in explorer.SCHEMA[name]]
        assert len({len(column) for column in table.values()}) == 1
        for field in explorer.SCHEMA[name]:
            if not field.nullable:
                assert all(value is not None for value in table[field.name]), (name, field.name)
    (about,) = rows(tables["Metadata"])
    assert about["is_simulation"]
    assert about["profile_schema_version"] == "7.4.0"
    assert len(tables["Instruction"]["id"]) + len(tables["DmaPacketAggregated"]["id"]) == (
        made.instructions + sum(w.transfer is not None and w.queue < 5 for w in made.stream.works)
    )


def test_the_summary_is_what_its_formulas_say(made: Prediction) -> None:
    """Written as the reference of the schema words them, row by row."""
    tables = explorer.tables_of(made)
    (said,) = rows(tables["Summary"])
    (about,) = rows(tables["Metadata"])
    instructions = rows(tables["Instruction"])
    packets, moved = rows(tables["DmaPacket"]), rows(tables["DmaPacketAggregated"])
    total = (about["last_hw_timestamp"] - about["first_hw_timestamp"]) / 1e9
    cores = about["num_physical_cores"]
    peak = 2 * 128 * 128 * about["tensor_engine_clock_freq"] * 1e9 * cores
    bandwidth = about["hbm_ddr_bandwidth"] * cores
    read = sum(row["read_bytes"] for row in moved if row["source"] == "hbm")
    written = sum(row["write_bytes"] for row in moved if row["dest"] == "hbm")
    raw = sum(row["raw_flops"] for row in instructions)
    turned = sum(row["flops_transpose"] for row in instructions)
    everything = spans(instructions) + spans(packets)
    expected = {
        "total_time": total,
        "neuroncore_cycle_count": round(total * 1.4e9),
        "hardware_flops": raw,
        "transpose_flops": turned,
        "adjusted_hardware_flops": 4 * raw,  # all products here are float32
        "mm_arithmetic_intensity": (raw - turned) / (read + written),
        "peak_flops_bandwidth_ratio": peak / bandwidth,
        "hbm_read_bytes": read,
        "hbm_write_bytes": written,
        "mbu_estimated_percent": (read + written) / total / bandwidth,
        "mfu_inst_estimated_percent": (raw - turned) / (peak * total),
        "hfu_estimated_percent": raw / (peak * total),
        "dma_packet_time": sum(row["duration_ns"] for row in packets) / 1e9,
        "dma_active_time": union(spans(packets)),
        "dma_active_time_percent": union(spans(packets)) / total,
        "dma_transfer_count": len(moved),
        "dma_transfer_total_bytes": sum(row["transfer_bytes"] for row in packets),
        "dma_transfer_average_bytes": sum(row["transfer_bytes"] for row in moved) / len(moved),
        "spill_save_bytes": sum(
            row["write_bytes"]
            for row in moved
            if (row["variable"], row["dest"]) == ("spill", "hbm")
        ),
        "total_exec_time": (max(b for _, b in everything) - min(a for a, _ in everything)) / 1e9,
        "total_active_time": union(everything),
    }
    for kind in ("software", "hardware"):
        mine = [row for row in packets if row["queue_type"] == f"{kind}_dynamic"]
        expected[f"{kind}_dynamic_dma_packet_count"] = len(mine)
        expected[f"{kind}_dynamic_dma_active_time"] = union(spans(mine))
        expected[f"{kind}_dynamic_dma_size"] = sum(row["transfer_bytes"] for row in mine)
    for engine in ENGINES:
        mine = [row for row in instructions if row["engine"] == engine]
        busiest = max(
            union(spans([row for row in mine if row["pcore_idx"] == core])) for core in (0, 1)
        )
        expected |= {
            f"{engine}_engine_instruction_time": sum(row["duration_ns"] for row in mine) / 1e9,
            f"{engine}_engine_active_time": busiest,
            f"{engine}_engine_active_time_percent": busiest / total,
            f"{engine}_engine_instruction_count": len(mine),
        }
    for name, value in expected.items():
        # Fields are float32.
        assert said[name] == pytest.approx(value, rel=1e-5), name


def test_the_summary_agrees_with_the_prediction(made: Prediction) -> None:
    tables = explorer.tables_of(made)
    (said,) = rows(tables["Summary"])
    # To a nanosecond of each instruction.
    slack = 1e-9 * made.instructions + 1e-12
    assert said["total_time"] == pytest.approx(made.device_us / 1e6, abs=slack, rel=1e-6)
    # Transfers that an engine starts take its time too.
    starts = [0.0] * len(ENGINES)
    for work, count in zip(made.stream.works, made.counts.tolist(), strict=True):
        if work.transfer is not None and work.queue < len(ENGINES):
            starts[work.queue] += made.machine.cost(work).issue * count / 1e12
    for engine, starting in zip(ENGINES, starts, strict=True):
        time = said[f"{engine}_engine_active_time"]
        expected = made.busy_us[engine] / 1e6 + starting
        assert time == pytest.approx(expected, abs=slack, rel=1e-6)
    assert said["hbm_read_bytes"] + said["hbm_write_bytes"] == made.hbm_bytes
    assert said["spill_save_bytes"] + said["spill_reload_bytes"] == made.spilled_bytes
    opcodes = rows(tables["OpcodeSummary"])
    for engine in {row["engine"] for row in opcodes}:
        mine = [row for row in opcodes if row["engine"] == engine]
        count = sum(row["instruction_count"] for row in mine)
        assert count == said[f"{engine}_engine_instruction_count"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_tables_of_every_target(target: Any) -> None:
    tables = explorer.tables_of(predict(layered(6), target))
    (said,) = rows(tables["Summary"])
    assert 0 < said["hfu_estimated_percent"] <= 0.25 + 1e-6
    assert 0 < said["mbu_estimated_percent"] <= 1
    usage = tables["DmaUsage"]
    assert usage["total_transfer_bytes"].max() == pytest.approx(
        said["dma_transfer_total_bytes"], rel=1e-6
    )
    assert tables["PendingDma"]["value"][-1] == 0
    assert tables["PendingDma"]["value"].min() >= 0


def test_loops_are_whole_in_the_tables() -> None:
    made = Writer()
    with made.loop(25_000):
        made.add(Work("activation", ENGINES.index("scalar"), 512), reads=[0], writes=[1])
    found = predict(made.stream, get_target("trn2"))
    assert len(found.flat.work) < 25_000
    assert len(explorer.tables_of(found)["Instruction"]["id"]) == 25_000


def test_an_empty_program_has_tables() -> None:
    (said,) = rows(explorer.tables_of(predict(Stream(), get_target("trn2")))["Summary"])
    assert said["total_time"] == 0


def test_without_pyarrow_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Prediction
) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", absent)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    text = re.escape("writing Parquet needs pyarrow: pip install '.[explorer]'")
    with pytest.raises(ModuleNotFoundError, match=text):
        explorer.save(made, tmp_path)
    assert not list(tmp_path.iterdir())


def test_parquet_holds_the_tables(tmp_path: Path, made: Prediction) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `explorer` is not installed")
    tables = explorer.tables_of(made)
    paths = explorer.save(made, tmp_path / "profile")
    assert sorted(path.stem for path in paths) == sorted(explorer.SCHEMA)
    for path in paths:
        found = parquet.read_table(path)
        fields = explorer.SCHEMA[path.stem]
        assert found.column_names == [field.name for field in fields]
        assert [f.nullable for f in found.schema] == [field.nullable for field in fields]
        for field in fields:
            expected = np.array(tables[path.stem][field.name]).tolist()
            assert found[field.name].to_pylist() == expected, (path.stem, field.name)
