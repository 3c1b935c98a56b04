"""The command `neuron-monitor-prometheus.py`: neuron-monitor's documents for Prometheus.

    neuron-monitor | neuron-monitor-prometheus.py [--port 8000] [--address 0.0.0.0]

It reads documents from standard input and serves the last one at http://<address>:<port>/metrics.
Names of metrics, their help, types and labels are those that scrapes of the vendor's script show.
Errors and statuses, which a document counts for its period, are summed up. It ends with its input.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from neuron_tools.memory import DEVICE
from neuronxcc.extras import install_command
from neuronxcc.unread import ends_quietly

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

Document = dict[str, Any]
#: Labels of every line, and their keys in `instance_info`.
COMMON: Final = {
    "instance_name": "instance_name", "instance_id": "instance_id",
    "instance_type": "instance_type", "availability_zone": "instance_availability_zone",
    "region": "instance_region", "subnet_id": "subnet_id",
}  # fmt: skip
_SYSTEM_MEMORY: Final = {
    "memory_total_bytes": "System memory total_bytes bytes",
    "memory_used_bytes": "System memory used_bytes bytes",
    "swap_total_bytes": "System swap total_bytes bytes",
    "swap_used_bytes": "System swap used_bytes bytes",
}
_HARDWARE = ("neuron_device_count", "neuron_device_memory_size", "neuroncore_per_device_count")
_CLOCK: Final = "torchneuron_clock_info"
_CLOCK_SAID: Final = "Whose time neuroncore_utilization_ratio is: host or model"
Labels = dict[str, str]
Sample = tuple[Labels, float]


# A process has ended if nothing was said of it for so many of its longest periods, of at least so
# many seconds. A document says nothing of processes if none of their groups was due.
_PATIENCE, _SHORTEST = 2.5, 1.0


@dataclass
class _Runtime:
    """The last values of a process' groups, and until when they count."""

    report: Document = field(default_factory=dict)
    until: float = 0.0


class State:
    """What was read: the last value of every group, and the sums of what is counted by period."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._common: Labels = dict.fromkeys(COMMON, "")
        self._system: Document = {}
        self._hardware: Document | None = None
        self._clocks: Document = {}
        self._runtimes: dict[tuple[int, str], _Runtime] = {}
        # By metric and labels: the sum, and when the first was counted.
        self._sums: dict[str, dict[tuple[tuple[str, str], ...], tuple[float, float]]] = {}

    def add(self, document: Document, now: float) -> None:
        """Take a document in.

        Args:
            document: Of neuron-monitor.
            now: The time, in seconds since 1970.

        Raises:
            KeyError, TypeError, AttributeError, ValueError: It is none.
        """
        info = document["instance_info"]
        with self._lock:
            self._common = {label: str(info.get(key, "")) for label, key in COMMON.items()}
            self._hardware = dict(document["neuron_hardware_info"])
            self._system |= document["system_data"]
            self._clocks = dict(document.get("torchneuron", {}).get("clocks", {}))
            for runtime in document["neuron_runtime_data"]:
                key = int(runtime["pid"]), str(runtime["neuron_runtime_tag"])
                # Groups with a longer period than the document keep their last values.
                known = self._runtimes.get(key, _Runtime())
                known.report |= runtime["report"]
                periods = [float(group["period"]) for group in known.report.values()]
                known.until = now + _PATIENCE * max([*periods, _SHORTEST])
                self._runtimes[key] = known
                self._sum_runtime(key[1], runtime["report"], now)
            self._runtimes = {k: known for k, known in self._runtimes.items() if known.until > now}
            counters = document["system_data"].get("neuron_hw_counters", {"neuron_devices": []})
            for device in counters["neuron_devices"]:
                index = str(device["neuron_device_index"])
                for event, count in device.items():
                    if event != "neuron_device_index":
                        labels = {"event_type": event, "neuron_device_index": index}
                        self._sum("hardware_ecc_events", labels, count, now)

    def _sum_runtime(self, tag: str, report: Document, now: float) -> None:
        stats = report.get("execution_stats")
        if stats is None:
            return
        for metric, label, counts in (
            ("execution_errors", "error_type", stats["error_summary"]),
            ("execution_status", "status_type", stats["execution_summary"]),
        ):
            for name, count in counts.items():
                self._sum(metric, {"runtime_tag": tag, label: name}, count, now)

    def _sum(self, metric: str, labels: Labels, count: float, now: float) -> None:
        sums = self._sums.setdefault(metric, {})
        key = tuple(sorted(labels.items()))
        before, created = sums.get(key, (0.0, now))
        sums[key] = before + max(0.0, float(count)), created

    def gauges(self) -> Iterator[tuple[str, str, list[Sample]]]:
        """The metrics that go up and down: name, help, and values with their labels."""
        with self._lock:
            yield from self._system_gauges()
            yield from self._runtime_gauges()

    def counters(self) -> Iterator[tuple[str, str, list[tuple[Labels, float, float]]]]:
        """The metrics that grow: name without "_total", help, values with labels, since when."""
        helps = {
            "hardware_ecc_events": "Hardware ecc events total",
            "execution_errors": "Execution errors total",
            "execution_status": "Execution status total",
        }
        with self._lock:
            for metric, sums in self._sums.items():
                rows = [
                    (self._common | dict(key), value, created)
                    for key, (value, created) in sums.items()
                ]
                yield metric, helps[metric], rows

    def _system_gauges(self) -> Iterator[tuple[str, str, list[Sample]]]:
        memory, usage = self._system.get("memory_info"), self._system.get("vcpu_usage")
        if memory is not None:
            for name, said in _SYSTEM_MEMORY.items():
                yield f"system_{name}", said, [(dict(self._common), float(memory[name]))]
        if usage is not None:
            count = float(len(usage["usage_data"]))
            yield "system_vcpu_count", "System vCPU count", [(dict(self._common), count)]
            rows = [
                (self._common | {"usage_type": kind}, usage["average_usage"][kind] / 100)
                for kind in ("user", "system")
            ]
            yield "system_vcpu_usage_ratio", "System CPU utilization ratio", rows
        if self._hardware is None:
            return
        yield "instance_info", "EC2 instance information", [(dict(self._common), 1.0)]
        facts = {name: str(self._hardware[name]) for name in _HARDWARE}
        yield "neuron_hardware_info", "Neuron Hardware Information", [(self._common | facts, 1.0)]

    def _runtime_gauges(self) -> Iterator[tuple[str, str, list[Sample]]]:
        found: dict[str, tuple[str, list[Sample]]] = {}
        for (pid, tag), known in self._runtimes.items():
            # Ours, beside the vendor's: whose time a process' utilisation is.
            clock = self._clocks.get(str(pid), {}).get("neuroncore_utilization")
            if clock is not None:
                labels = self._common | {"runtime_tag": tag, "clock": str(clock)}
                found.setdefault(_CLOCK, (_CLOCK_SAID, []))[1].append((labels, 1.0))
            for name, said, labels, value in _gauges_of(known.report):
                samples = found.setdefault(name, (said, []))[1]
                samples.append((self._common | {"runtime_tag": tag} | labels, float(value)))
        for name, (said, samples) in sorted(found.items()):
            yield name, said, samples


def _gauges_of(report: Document) -> Iterator[tuple[str, str, Labels, float]]:
    """The metrics of a process that go up and down: name, help, own labels, value."""
    for index, core in _of(report, "neuroncore_counters", "neuroncores_in_use").items():
        share = core["neuroncore_utilization"] / 100
        name, said = "neuroncore_utilization_ratio", "NeuronCore utilization ratio"
        yield name, said, {"neuroncore": index}, share
    for kind, percent in _of(report, "neuron_runtime_vcpu_usage", "vcpu_usage").items():
        name, said = "neuron_runtime_vcpu_usage_ratio", "Runtime vCPU utilization ratio"
        yield name, said, {"usage_type": kind}, percent / 100
    latencies = _of(report, "execution_stats", "latency_stats").get("total_latency") or {}
    for percentile, seconds in latencies.items():
        name, said = "execution_latency_seconds", "Execution latency in seconds"
        yield name, said, {"percentile": percentile}, seconds
    used = _of(report, "memory_used", "neuron_runtime_used_bytes")
    for place in (place for place in ("host", "neuron_device") if place in used):
        name, said = "neuron_runtime_memory_used_bytes", "Runtime memory used bytes"
        yield name, said, {"memory_location": place}, used[place]
    for index, sizes in used.get("usage_breakdown", {}).get("neuroncore_memory_usage", {}).items():
        labels = {"memory_location": "None", "neuroncore": index}
        for category in DEVICE:
            said = f"NeuronCore memory utilization for {category}"
            yield f"neuroncore_memory_usage_{category}", said, labels, sizes[category]


def _of(report: Document, group: str, key: str) -> Document:
    found: Document = report.get(group, {}).get(key, {})
    return found


def collector(state: State) -> Collector:
    """Return what prometheus_client asks for a state's metrics."""
    from prometheus_client.core import (  # noqa: PLC0415 - an extra
        CounterMetricFamily,
        GaugeMetricFamily,
    )
    from prometheus_client.metrics_core import Metric  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class Metrics(Collector):
        def collect(self) -> Iterator[Metric]:
            for name, said, samples in state.gauges():
                labels = sorted(samples[0][0])
                gauge = GaugeMetricFamily(name, said, labels=labels)
                for given, value in samples:
                    gauge.add_metric([given[label] for label in labels], value)
                yield gauge
            for name, said, rows in state.counters():
                labels = sorted(rows[0][0])
                counter = CounterMetricFamily(name, said, labels=labels)
                for given, value, created in rows:
                    counter.add_metric([given[label] for label in labels], value, created=created)
                yield counter

    return Metrics()


def serve(state: State, port: int, address: str) -> Callable[[], None]:
    """Serve a state's metrics; returns what ends that.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed.
        OSError: The port is taken.
    """
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(collector(state))
    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _read(state: State) -> None:
    """Take in documents from standard input until it ends; what is none is reported and skipped."""
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            state.add(json.loads(line), time.time())
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            sys.stderr.write(
                "neuron-monitor-prometheus.py: a line is skipped, it is no document of "
                f"neuron-monitor: {type(error).__name__}: {error}\n"
            )


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="neuron-monitor-prometheus.py",
        description="Serve what `neuron-monitor` writes to standard output to Prometheus.",
        epilog="Use it as: neuron-monitor | neuron-monitor-prometheus.py --port 8000",
    )
    parser.add_argument("-p", "--port", type=int, default=8000, help="where; default 8000")
    parser.add_argument("--address", default="0.0.0.0", help="of an interface; default all of them")  # noqa: S104 - the vendor's
    parser.add_argument(
        "--enable-k8s-info", action="store_true",
        help="names of pods: refused, an emulated machine is no node of a cluster",
    )  # fmt: skip
    options = parser.parse_args(words)
    if options.enable_k8s_info:
        parser.error(
            "--enable-k8s-info is not possible: an emulated machine is no node of a cluster"
        )
    state = State()
    try:
        stop = serve(state, options.port, options.address)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"neuron-monitor-prometheus.py: {error}; {install_command('tools')}\n")
        return 1
    except (OSError, OverflowError) as error:
        sys.stderr.write(
            f"neuron-monitor-prometheus.py: port {options.port} cannot be used: {error}\n"
        )
        return 1
    try:
        _read(state)
    except KeyboardInterrupt:
        pass
    finally:
        stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
