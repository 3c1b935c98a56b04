"""neuron-monitor: its documents, its configuration, and how the numbers come about."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from neuron_tools.machine import machine
from neuron_tools.monitor import command, config
from neuron_tools.monitor.collect import Collector, instance_info
from tests.neuron_tools.monitor_schema import DOCUMENT
from tests.neuron_tools.registry_files import Core, Process

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
FIRST = Process(
    header={"tag": "trainer", "pinned_bytes": 5},
    cores=[
        Core(0, {
            "reserved_bytes": 10 * MIB, "allocated_bytes": 7 * MIB, "scratchpad_bytes": 2 * MIB,
            "constant_bytes": MIB, "flops": 1000, "busy_ticks": 10**9,
        }, {5: 1}, [10**6] * 10),
        Core(1), Core(2), Core(3),
    ],
    programs=[("step", 0, MIB)],
)  # fmt: skip


def collect(folder: Path, second: Process, wanted: config.Config | None = None) -> Any:
    """The document of a period in which the process became from the first to the second."""
    FIRST.write(folder)
    collector = Collector(wanted or config.default(), machine)
    jsonschema.validate(collector.start(), DOCUMENT)
    time.sleep(0.2)
    second.write(folder)
    document = collector.collect(everything=True)
    jsonschema.validate(document, DOCUMENT)
    return document


def test_a_period(folder: Path) -> None:
    second = Process(
        header=FIRST.header,
        cores=[
            Core(0, FIRST.cores[0].values | {"flops": 10**9, "busy_ticks": 11 * 10**8},
                 {5: 2, 4: 3, 1003: 1, 1200: 4}, [10**6] * 10 + [2 * 10**6] * 5,
                 [(10**6, 10**7)] * 3),
            *FIRST.cores[1:],
        ],
        programs=FIRST.programs,
    )  # fmt: skip
    document = collect(folder, second)
    (runtime,) = document["neuron_runtime_data"]
    report = runtime["report"]
    assert (runtime["pid"], runtime["neuron_runtime_tag"]) == (os.getpid(), "trainer")
    stats = report["execution_stats"]
    # 5 + 3 ended, of which one was found to be wrong afterwards.
    assert stats["execution_summary"] == {
        "completed": 7, "completed_with_err": 4, "completed_with_num_err": 1, "timed_out": 1,
        "incorrect_input": 0, "failed_to_queue": 3,
    }  # fmt: skip
    assert stats["error_summary"] == {
        "generic": 0, "numerical": 1, "transient": 0, "model": 0, "runtime": 4, "hardware": 4,
    }  # fmt: skip
    device = stats["latency_stats"]["device_latency"]
    total = stats["latency_stats"]["total_latency"]
    assert device["p1"] == pytest.approx(1e-3, rel=1 / 8)
    assert device["p99"] == pytest.approx(2e-3, rel=1 / 8)
    assert total["p99"] == pytest.approx(1e-2, rel=1 / 8)
    counters = report["neuroncore_counters"]
    seconds = counters["period"]
    core = counters["neuroncores_in_use"]["0"]
    assert list(counters["neuroncores_in_use"]) == ["0"]
    assert core["neuroncore_utilization"] == pytest.approx(min(100, 100 * 0.1 / seconds), rel=0.05)
    assert core["flops"] == round((10**9 - 1000) / seconds)
    assert set(core["v3d"]) == {"nc_v3.0", "nc_v3.1"}


def test_memory_sums_to_totals(folder: Path) -> None:
    document = collect(folder, FIRST)
    (runtime,) = document["neuron_runtime_data"]
    used = runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]
    core = used["usage_breakdown"]["neuroncore_memory_usage"]["0"]
    assert core == {
        "constants": MIB, "model_code": 0, "model_shared_scratchpad": 2 * MIB,
        "runtime_memory": 3 * MIB, "tensors": 4 * MIB,
    }  # fmt: skip
    assert used["neuron_device"] == sum(core.values()) == 10 * MIB
    assert used["host"] == sum(used["usage_breakdown"]["host"].values()) == 5
    (model,) = runtime["report"]["memory_used"]["loaded_models"]
    assert (model["name"], model["model_id"], model["is_running"]) == ("step", 1, True)
    assert model["subgraphs"]["sg_00"]["memory_used_bytes"]["neuron_device"] == MIB


def test_nothing_executed_has_no_latency(folder: Path) -> None:
    (runtime,) = collect(folder, FIRST)["neuron_runtime_data"]
    latency = runtime["report"]["execution_stats"]["latency_stats"]
    assert latency == {"total_latency": None, "device_latency": None}


def test_an_execution_that_runs_keeps_the_core_busy(folder: Path) -> None:
    busy = FIRST.cores[0].values | {"busy_since": 1, "busy_ticks": 0}
    now = time.monotonic_ns()
    clock: dict[str, int | str] = {"clock_ns": now - 10**9, "clock_ticks": 0}
    process = Process(FIRST.header | clock, [Core(0, busy), *FIRST.cores[1:]])
    process.write(folder)
    collector = Collector(config.default(), machine)
    collector.start()
    time.sleep(0.1)
    (runtime,) = collector.collect(everything=True)["neuron_runtime_data"]
    core = runtime["report"]["neuroncore_counters"]["neuroncores_in_use"]["0"]
    assert core["neuroncore_utilization"] == pytest.approx(100, abs=1)


def test_a_process_that_begins_within_the_period_counts_whole(folder: Path) -> None:
    collector = Collector(config.default(), machine)
    assert collector.start()["neuron_runtime_data"] == []
    FIRST.write(folder)
    (runtime,) = collector.collect(everything=True)["neuron_runtime_data"]
    summary = runtime["report"]["execution_stats"]["execution_summary"]
    assert (summary["completed"], summary["timed_out"]) == (10, 1)


def test_the_first_document_is_as_captured(folder: Path) -> None:
    assert not folder.exists()
    document = Collector(config.default(), machine).start()
    assert document["neuron_runtime_data"] == []
    assert list(document["system_data"]) == ["memory_info"]


def test_the_first_document_has_what_wandb_waits_for(folder: Path) -> None:
    """Its reader matches a process by number and needs this within five seconds."""
    FIRST.write(folder)
    document = Collector(config.default(), machine).start()
    (runtime,) = document["neuron_runtime_data"]
    assert runtime["pid"] == os.getpid()
    used = runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]
    assert used["usage_breakdown"]["neuroncore_memory_usage"]["0"]["tensors"] == 4 * MIB
    assert document["neuron_hardware_info"]["neuron_device_count"] == 1


def test_hardware_as_captured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not folder.exists()
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert Collector(config.default(), machine).start()["neuron_hardware_info"] == {
        "neuron_device_type": "trainium", "neuron_device_version": "v2",
        "neuroncore_version": "v2", "neuron_device_count": 1,
        "neuron_device_memory_size": 34359738368, "neuroncore_per_device_count": 2,
        "logical_neuroncore_config": 1, "error": "",
    }  # fmt: skip


def test_hardware_as_documented(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not folder.exists()
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", "trn2.48xlarge")
    assert Collector(config.default(), machine).start()["neuron_hardware_info"] == {
        "neuron_device_type": "trainium2", "neuron_device_version": "v4",
        "neuroncore_version": "v3d", "neuron_device_count": 16,
        "neuron_device_memory_size": 103079215104, "neuroncore_per_device_count": 4,
        "logical_neuroncore_config": 2, "error": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("NAME", "instance_name"),
        ("ID", "instance_id"),
        ("REGION", "instance_region"),
        ("AVAILABILITY_ZONE", "instance_availability_zone"),
        ("AVAILABILITY_ZONE_ID", "instance_availability_zone_id"),
        ("AMI_ID", "ami_id"),
        ("SUBNET_ID", "subnet_id"),
    ],
)
def test_what_the_environment_says_of_the_instance(
    variable: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"NEURON_EMULATED_INSTANCE_{variable}", "said")
    found = instance_info(machine())
    texts = {name for name, value in found.items() if value == "said"}
    assert texts == {key}
    # Nobody is asked what the environment does not say, and that is no silent gap.
    assert bool(found["error"]) == (variable != "ID")


def test_tags_are_filtered(folder: Path) -> None:
    metrics = [{"type": "memory_used"}]
    text = json.dumps({"neuron_runtimes": [{"tag_filter": "^other$", "metrics": metrics}]})
    assert collect(folder, FIRST, config.parse(text))["neuron_runtime_data"] == []
    text = json.dumps({"neuron_runtimes": [{"tag_filter": "train", "metrics": metrics}]})
    (runtime,) = collect(folder, FIRST, config.parse(text))["neuron_runtime_data"]
    assert list(runtime["report"]) == ["memory_used"]


def test_periods_of_the_documented_example() -> None:
    found = config.parse(
        json.dumps({
            "period": "1s",
            "neuron_runtimes": [
                {"tag_filter": ".*", "metrics": [{"type": t} for t in config.RUNTIME_GROUPS]}
            ],
            "system_metrics": [
                {"type": "vcpu_usage"},
                {"type": "memory_info"},
                {"period": "2s", "type": "neuron_hw_counters"},
            ],
        })
    )  # fmt: skip
    assert {m.type: m.period for m in found.metrics} == {
        **dict.fromkeys((*config.RUNTIME_GROUPS, "vcpu_usage", "memory_info"), 1.0),
        "neuron_hw_counters": 2.0,
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1m", 60), ("1m30s", 90), ("1.5s", 1.5), ("2h", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    found = config.parse(json.dumps({"period": text, "system_metrics": [{"type": "vcpu_usage"}]}))
    assert found.system[0].period == pytest.approx(seconds)


GOOD = {"system_metrics": [{"type": "vcpu_usage"}]}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("{", "it is not JSON: "),
        ("[]", "it must be an object, not []"),
        ("{}", "it asks for nothing: "),
        ({"periods": "1s"}, "it: 'periods' is not known; allowed: period, neuron_runtimes, "),
        (GOOD | {"period": "5"}, 'it: "period" must be a duration such as "5s" or "500ms", not '),
        (GOOD | {"period": 5}, 'it: "period" must be a duration such as "5s" or "500ms", not 5'),
        (GOOD | {"period": "1ms"}, 'it: "period" must be at least "100ms", not \'1ms\''),
        (GOOD | {"k8s_info": {"enabled": True}}, '"k8s_info" is not possible: '),
        ({"system_metrics": {}}, '"system_metrics" must be an array, not {}'),
        ({"system_metrics": [{"type": "gpu"}]}, '"system_metrics"[0]: "type" must be one of '),
        ({"neuron_runtimes": [{"tag_filter": "(", "metrics": []}]},
         '"neuron_runtimes"[0]: "tag_filter" \'(\' is no regular expression: '),
        ({"neuron_runtimes": [{"metrics": [{"type": "vcpu_usage"}]}]},
         '"neuron_runtimes"[0]."metrics"[0]: "type" must be one of neuroncore_counters, '),
    ],
)  # fmt: skip
def test_wrong_configurations(document: object, why: str) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(config.ConfigError, match=re.escape(why)):
        config.parse(text)


def test_a_wrong_configuration_ends_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not folder.exists()
    file = tmp_path / "monitor.conf"
    assert command.main(["-c", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"neuron-monitor: {file}: it cannot be read: ")


def test_the_command_writes_a_line_a_period(folder: Path, tmp_path: Path) -> None:
    FIRST.write(folder)
    file = tmp_path / "monitor.conf"
    file.write_text(json.dumps({
        "period": "200ms", "system_metrics": [{"type": "vcpu_usage"}],
        "neuron_runtimes": [{"metrics": [{"type": "memory_used", "period": "100ms"}]}],
    }))  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "neuron_tools.monitor.command", "-c", str(file)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(5)]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    for line in lines:
        jsonschema.validate(line, DOCUMENT)
    assert any("vcpu_usage" in line["system_data"] for line in lines)
    assert any("vcpu_usage" not in line["system_data"] for line in lines[1:])
    assert all(line["neuron_runtime_data"] for line in lines if not line["system_data"])
