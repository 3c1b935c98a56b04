"""neuron-monitor-prometheus.py: names, labels and values, and who reads them."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from neuron_tools import prometheus
from neuron_tools.machine import machine
from neuron_tools.monitor import config
from neuron_tools.monitor.collect import Collector
from tests.neuron_tools.promql import Query, Vector, samples
from tests.neuron_tools.registry_files import Core, Process

ROOT = Path(__file__).parents[2]
USED = {"reserved_bytes": 100, "allocated_bytes": 60, "scratchpad_bytes": 10}

# Type, and labels besides those of every line, of each metric: as a public scrape has them
# (DataDog/integrations-core, aws_neuron/tests/fixtures/aws_neuron_metrics.txt).
METRICS: dict[str, tuple[str, set[str]]] = {
    "system_memory_total_bytes": ("gauge", set()),
    "system_memory_used_bytes": ("gauge", set()),
    "system_swap_total_bytes": ("gauge", set()),
    "system_swap_used_bytes": ("gauge", set()),
    "system_vcpu_count": ("gauge", set()),
    "system_vcpu_usage_ratio": ("gauge", {"usage_type"}),
    "hardware_ecc_events_total": ("counter", {"event_type", "neuron_device_index"}),
    "instance_info": ("gauge", set()),
    "neuron_hardware_info": ("gauge", {
        "neuron_device_count", "neuron_device_memory_size", "neuroncore_per_device_count"}),
    "execution_errors_total": ("counter", {"runtime_tag", "error_type"}),
    "execution_status_total": ("counter", {"runtime_tag", "status_type"}),
    "execution_latency_seconds": ("gauge", {"runtime_tag", "percentile"}),
    "neuron_runtime_memory_used_bytes": ("gauge", {"runtime_tag", "memory_location"}),
    **{
        f"neuroncore_memory_usage_{category}": (
            "gauge", {"runtime_tag", "memory_location", "neuroncore"})
        for category in ("constants", "model_code", "model_shared_scratchpad", "runtime_memory",
                         "tensors")
    },
    "neuroncore_utilization_ratio": ("gauge", {"runtime_tag", "neuroncore"}),
    "neuron_runtime_vcpu_usage_ratio": ("gauge", {"runtime_tag", "usage_type"}),
}  # fmt: skip
COMMON = {
    "availability_zone", "instance_id", "instance_name", "instance_type", "region", "subnet_id",
}  # fmt: skip
# What the dashboard of the vendor asks for (neuron-monitor-grafana.json).
EXPRESSIONS = (
    "instance_info",
    "count(instance_info)\n",
    "sum (system_vcpu_count)",
    "avg(sum by (instance_id) (system_vcpu_usage_ratio))",
    "avg(system_memory_used_bytes / system_memory_total_bytes)",
    "count(neuroncore_utilization_ratio > 0)",
    "avg(neuroncore_utilization_ratio)",
    'sum(rate(execution_status_total{status_type="completed"}[1m]))',
    'sum(rate(execution_status_total{status_type!="completed"}[1m]))',
    "avg by (percentile) (execution_latency_seconds)",
    "avg by (neuroncore) (neuroncore_utilization_ratio)",
    "avg by (usage_type) (neuron_runtime_vcpu_usage_ratio)",
    (
        "avg by (memory_location) (sum by (instance_id, memory_location) "
        "(neuron_runtime_memory_used_bytes))"
    ),
    "avg by (usage_type) (system_vcpu_usage_ratio)",
    "avg(system_memory_used_bytes)",
    # Of dashboards that others have made.
    "increase(hardware_ecc_events_total[1h])",
)


def process(executions: int, timeouts: int = 0) -> Process:
    core = Core(0, USED | {"busy_ticks": executions * 10**6}, {5: timeouts}, [10**6] * executions)
    return Process(header={"tag": "job"}, cores=[core, Core(1), Core(2), Core(3)])


def exposition(state: prometheus.State) -> str:
    """What a scrape gets, without a server."""
    registry = CollectorRegistry()
    registry.register(prometheus.collector(state))
    return generate_latest(registry).decode()


@pytest.fixture
def scrapes(folder: Path) -> tuple[str, str]:
    """Two scrapes, a minute apart, of a process that executes 10 and then 30 more times."""
    state = prometheus.State()
    process(10).write(folder)
    collector = Collector(config.default(), machine)
    state.add(collector.start(), 1000.0)
    state.add(collector.collect(everything=True), 1000.0)
    first = exposition(state)
    process(40, 3).write(folder)
    state.add(collector.collect(everything=True), 1060.0)
    return first, exposition(state)


def test_names_types_and_labels(scrapes: tuple[str, str]) -> None:
    _, text = scrapes
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    found = samples(text)
    assert {name: kinds[name] for name in METRICS} == {n: kind for n, (kind, _) in METRICS.items()}
    for name, (_, own) in METRICS.items():
        assert found[name], name
        for key in found[name]:
            assert {label for label, _ in key} == COMMON | own, name
    created = {name for name in found if name.endswith("_created")}
    assert created == {
        "hardware_ecc_events_created", "execution_errors_created", "execution_status_created",
    }  # fmt: skip
    assert set(found) == set(METRICS) | created | {"torchneuron_clock_info"}  # the last is ours
    assert "# HELP execution_latency_seconds Execution latency in seconds\n" in text
    assert "# HELP system_memory_total_bytes System memory total_bytes bytes\n" in text


def query(scrapes: tuple[str, str]) -> Query:
    return Query(samples(scrapes[0]), samples(scrapes[1]), 60.0)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_of_the_dashboard_has_a_value(
    expression: str, scrapes: tuple[str, str]
) -> None:
    assert query(scrapes)(expression)


def only(vector: Vector) -> float:
    (value,) = vector.values()
    return value


def test_values(scrapes: tuple[str, str]) -> None:
    ask = query(scrapes)
    assert only(ask(EXPRESSIONS[7])) == pytest.approx(30 / 60)
    assert only(ask(EXPRESSIONS[8])) == pytest.approx(3 / 60)
    assert only(ask("count(neuroncore_utilization_ratio > 0)")) == 1
    memory = ask('neuron_runtime_memory_used_bytes{memory_location="neuron_device"}')
    assert only(memory) == 100
    assert only(ask('execution_latency_seconds{percentile="p50"}')) == pytest.approx(
        1e-3, rel=1 / 8
    )
    assert only(ask('neuroncore_memory_usage_tensors{neuroncore="0"}')) == 50
    assert all(value == 0 for value in ask("hardware_ecc_events_total").values())
    assert all(0 <= value <= 1 for value in ask("system_vcpu_usage_ratio").values())


def test_a_process_that_ends_leaves_sums_and_nothing_else(folder: Path) -> None:
    state = prometheus.State()
    path = process(10).write(folder)
    collector = Collector(config.default(), machine)
    collector.start()
    process(20).write(folder)
    state.add(collector.collect(everything=True), 1.0)
    path.unlink()
    nothing = collector.collect(everything=True)
    state.add(nothing, 2.0)  # a document that says nothing of processes may be of other groups
    assert "neuroncore_utilization_ratio" in samples(exposition(state))
    state.add(nothing, 20.0)
    found = samples(exposition(state))
    assert "neuroncore_utilization_ratio" not in found
    assert sum(found["execution_status_total"].values()) == 10


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"neuron_runtime_data": []}', "null"])
def test_what_is_no_document_is_skipped(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", [line, "\n"])
    prometheus._read(prometheus.State())
    assert capsys.readouterr().err.startswith("neuron-monitor-prometheus.py: a line is skipped, ")


def test_the_command_serves_what_it_reads(folder: Path) -> None:
    process(10).write(folder)
    documents = Collector(config.default(), machine)
    lines = [documents.start(), documents.collect(everything=True)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = subprocess.Popen(
        [sys.executable, "-m", "neuron_tools.prometheus", "--port", str(port), "--address",
         "127.0.0.1"],
        cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert command.stdin is not None
    for line in lines:
        command.stdin.write(json.dumps(line) + "\n")
    command.stdin.write("not a document\n")
    command.stdin.flush()
    assert command.stderr is not None
    assert "a line is skipped" in command.stderr.readline()  # so the others are taken in
    found = samples(scrape(port))
    command.stdin.close()
    assert command.wait(timeout=30) == 0
    command.stderr.close()
    assert sum(found["system_vcpu_count"].values()) > 0
    assert "neuroncore_utilization_ratio" in found


def scrape(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert prometheus.main(["--port", str(port), "--address", "127.0.0.1"]) == 1
    assert f"port {port} cannot be used: " in capsys.readouterr().err
