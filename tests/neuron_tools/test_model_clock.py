"""TORCH_NEURONX_CLOCK=model: predicted times of processes, and whose time each tool tells."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from neuron_tools import latency, prometheus
from neuron_tools.machine import clock_of, machine
from neuron_tools.monitor import config
from neuron_tools.monitor.collect import Collector
from neuron_tools.registry import buckets, predicted, reader
from neuron_tools.registry.layout import LAYOUT
from neuron_tools.registry.predicted import Keeper
from neuron_tools.sysfs.tree import Tree
from neuron_tools.top.screen import View, render, texts
from tests.neuron_tools.monitor_schema import DOCUMENT
from tests.neuron_tools.registry_files import Core, Process, bucket

MS = 10**6
BUSY = {"reserved_bytes": 1, "busy_ticks": 10**9}


def test_buckets_are_those_of_the_native_core() -> None:
    assert LAYOUT.core.series["at_call"][1] == buckets.BUCKETS
    for ns in (*range(200), 10**6, 10**9, 3 * 10**11):
        assert buckets.bucket(ns) == bucket(ns), ns
    assert buckets.bucket(1 << 63) == buckets.BUCKETS - 1


def count(keeper: Keeper, core: int, ns: int | None) -> None:
    """An execution, as the native core counts it."""
    for place, amount in keeper.places(core, ns):
        keeper.numbers[place] += amount


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1-2-3"
    keeper = Keeper(path, 2)
    for ns in (5, 7, 1000):
        count(keeper, 1, ns)
    count(keeper, 1, None)
    assert stat.S_IMODE(keeper.path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [keeper.path]
    found = predicted.read(path)
    assert found is not None
    assert found[0] == predicted.NOTHING
    assert (found[1].ns, found[1].executions, sum(found[1].latencies)) == (1012, 3, 3)
    assert (found[0].unpredicted, found[1].unpredicted) == (0, 1)
    times = latency.percentiles(found[1].latencies, 10**9)
    assert times is not None
    assert times["p99"] == pytest.approx(1e-6, rel=1 / 8)
    Keeper(path, 1)  # of the program that the process became
    assert predicted.read(path) == (predicted.NOTHING,)
    keeper.remove()
    assert predicted.read(path) is None


@pytest.mark.parametrize("content", [b"", b"x" * 24, b"NEURONPT" + (1).to_bytes(8, "little") * 2])
def test_a_damaged_file_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "1-2-3"
    predicted.beside(path).write_bytes(content)
    assert predicted.read(path) is None


def test_one_of_other_cores_is_none(folder: Path) -> None:
    path = Process(cores=[Core(0, BUSY)]).write(folder)
    Keeper(path, 2)
    assert reader.read(path).predicted is None


@pytest.fixture
def documents(folder: Path) -> dict[str, Any]:
    """A period by each clock, of this process, which keeps predictions, and of its parent."""
    mine: dict[str, int | str] = {"tag": "mine"}
    path = Process(header=mine, cores=[Core(0, {"reserved_bytes": 1})]).write(folder)
    keeper = Keeper(path, 1)
    count(keeper, 0, 10**9)  # before the period
    other: dict[str, int | str] = {"tag": "other", "pid": os.getppid()}
    Process(header=other, cores=[Core(0, {"reserved_bytes": 1})]).write(folder)
    collectors = {clock: Collector(config.default(), machine, clock) for clock in ("host", "model")}
    for collector in collectors.values():
        collector.start()
    time.sleep(0.3)
    for _ in range(3):
        count(keeper, 0, 10 * MS)
    for header in (mine, other):
        values = {"reserved_bytes": 1, "busy_ticks": 60 * MS}
        Process(header=header, cores=[Core(0, values, {}, [20 * MS] * 3)]).write(folder)
    found = {clock: collectors[clock].collect(everything=True) for clock in collectors}
    for document in found.values():
        jsonschema.validate(document, DOCUMENT)
    return found


def report(document: Any, tag: str) -> tuple[float, float, float]:
    """Milliseconds that a process was busy; its device and total latency."""
    (found,) = (r for r in document["neuron_runtime_data"] if r["neuron_runtime_tag"] == tag)
    counters = found["report"]["neuroncore_counters"]
    share = counters["neuroncores_in_use"]["0"]["neuroncore_utilization"] / 100
    times = found["report"]["execution_stats"]["latency_stats"]
    return (
        1000 * share * counters["period"],
        1000 * times["device_latency"]["p50"],
        1000 * times["total_latency"]["p50"],
    )


def test_each_number_is_of_the_clock_that_is_said(documents: dict[str, Any]) -> None:
    host, model = pytest.approx((60, 20, 20), rel=1 / 8), pytest.approx((30, 10, 20), rel=1 / 8)
    assert report(documents["host"], "mine") == host
    assert report(documents["model"], "mine") == model
    assert report(documents["model"], "other") == host  # it keeps no predictions
    for clock, document in documents.items():
        ours = document["torchneuron"]
        assert ours["clock"] == clock
        mine, other = ours["clocks"][str(os.getpid())], ours["clocks"][str(os.getppid())]
        assert mine["neuroncore_utilization"] == mine["device_latency"] == clock
        assert mine["total_latency"] == "host"
        assert other["neuroncore_utilization"] == other["device_latency"] == "host"


def test_how_much_is_predicted_is_said(documents: dict[str, Any]) -> None:
    kept = documents["model"]["torchneuron"]["predictions"]
    assert kept == {str(os.getpid()): {"executions": 3, "predicted": 4, "unpredicted": 0}}


def test_a_program_without_prediction_makes_its_process_the_hosts(folder: Path) -> None:
    keeper = Keeper(Process(cores=[Core(0, {"reserved_bytes": 1})]).write(folder), 1)
    count(keeper, 0, MS)
    assert [clock_of(one, "model") for one in machine().processes] == ["model"]
    count(keeper, 0, None)
    assert [clock_of(one, "model") for one in machine().processes] == ["host"]
    collector = Collector(config.default(), machine, "model")
    collector.start()
    document = collector.collect(everything=True)
    jsonschema.validate(document, DOCUMENT)
    ours = document["torchneuron"]
    assert ours["clocks"][str(os.getpid())]["neuroncore_utilization"] == "host"
    counts = ours["predictions"][str(os.getpid())]
    assert counts == {"executions": 0, "predicted": 1, "unpredicted": 1}
    assert "(predicted time; 1 processes have none)" in "".join(
        texts(render(document, View(), 100, 30))
    )


def test_the_exporter_says_whose_time_it_is(documents: dict[str, Any]) -> None:
    state = prometheus.State()
    state.add(documents["model"], 0.0)
    found = {name: samples for name, _, samples in state.gauges()}
    clocks = {s["runtime_tag"]: s["clock"] for s, _ in found["torchneuron_clock_info"]}
    assert clocks == {"mine": "model", "other": "host"}


def test_neuron_top_adds_no_times_of_two_clocks(documents: dict[str, Any]) -> None:
    def lines(clock: str) -> list[str]:
        return list(texts(render(documents[clock], View(), 100, 30)))

    assert "(this host's time)" in lines("host")[0]
    assert "(predicted time; 1 processes have none)" in lines("model")[0]
    assert "(%, F changes; of 100% of executions)" in lines("model")[1]
    assert "(%, F changes)" in lines("host")[1]
    (mine,) = (
        runtime["report"]["neuroncore_counters"]
        for runtime in documents["model"]["neuron_runtime_data"]
        if runtime["neuron_runtime_tag"] == "mine"
    )
    bar = next(line for line in lines("model") if line.startswith("ND0 NC0"))
    assert float(bar.split()[-1].rstrip("%")) == pytest.approx(3 / mine["period"], rel=0.05)


@pytest.mark.parametrize(("clock", "microseconds"), [("host", 60_000 * 2), ("model", 1_030_000)])
def test_the_drivers_tree(
    clock: str, microseconds: int, documents: dict[str, Any], tmp_path: Path
) -> None:
    assert documents  # its processes live
    Tree(tmp_path / "sys", clock).update(machine())
    counter = tmp_path / "sys/neuron0/neuron_core0/stats/other_info/nc_time_in_use"
    assert (counter / "clock").read_text() == f"{clock}\n"
    assert (counter / "total").read_text() == f"{microseconds}\n"
