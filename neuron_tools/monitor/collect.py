"""Collecting: which groups are due, and the document that they make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuron_tools import proc
from neuron_tools.machine import Machine
from neuron_tools.monitor import groups
from neuron_tools.monitor.config import Config, Metric, Runtimes
from neuron_tools.monitor.groups import Runtime
from neuronxcc import __version__
from neuronxcc.environment.tools import (
    NEURON_EMULATED_INSTANCE_AMI_ID,
    NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE,
    NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE_ID,
    NEURON_EMULATED_INSTANCE_NAME,
    NEURON_EMULATED_INSTANCE_REGION,
    NEURON_EMULATED_INSTANCE_SUBNET_ID,
)

Document = dict[str, Any]
# The numbers of the devices that neuron-monitor names, which are newer than their cores': its guide
# and users' captures call the device of trn1 v2 and that of trn2 v4.
_DEVICES = {
    "trn1": ("trainium", "v2"), "trn1n": ("trainium", "v2"), "inf2": ("inferentia2", "v3"),
    "trn2": ("trainium2", "v4"),
}  # fmt: skip


def hardware_info(machine: Machine) -> Document:
    """Return `neuron_hardware_info`."""
    kind, version = _DEVICES.get(machine.target.name, (machine.target.chip_name.lower(), ""))
    return {
        "neuron_device_type": kind,
        "neuron_device_version": version,
        "neuroncore_version": machine.core_version,
        "neuron_device_count": len(machine.devices),
        "neuron_device_memory_size": machine.target.hbm_bytes,
        "neuroncore_per_device_count": machine.cores_per_device,
        "logical_neuroncore_config": machine.lnc,
        "error": "",
    }


def instance_info(machine: Machine) -> Document:
    """Return `instance_info`: what the environment says of an instance, which there is not."""
    return {
        "instance_name": NEURON_EMULATED_INSTANCE_NAME.text(),
        "instance_id": machine.instance_id,
        "instance_type": machine.instance_type,
        "instance_availability_zone": NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE.text(),
        "instance_availability_zone_id": NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE_ID.text(),
        "instance_region": NEURON_EMULATED_INSTANCE_REGION.text(),
        "ami_id": NEURON_EMULATED_INSTANCE_AMI_ID.text(),
        "subnet_id": NEURON_EMULATED_INSTANCE_SUBNET_ID.text(),
        "error": ""
        if machine.instance_id
        else "the machine is emulated and has no metadata service; NEURON_EMULATED_INSTANCE_ID "
        "and its relatives say what to show",
    }


@dataclass
class _Clock:
    """When a group was collected last, and when it is due."""

    period: float
    due: float
    last: float
    before: Any = None  # what was known then


@dataclass
class Collector:
    """Collects documents.

    Attributes:
        config: What is wanted.
        look: Returns the machine and its processes as they are now.
        clock: Whose time utilisation and latencies are.
    """

    config: Config
    look: Callable[[], Machine]
    clock: str = "host"
    _system: dict[str, _Clock] = field(default_factory=dict)
    _runtimes: list[tuple[Runtimes, dict[str, _Clock]]] = field(default_factory=list)

    def start(self) -> Document:
        """Look for the first time; returns the first document, of what needs no period."""
        now, machine = time.monotonic(), self.look()
        runtimes = _runtimes(machine)

        def clock(metric: Metric, before: Any) -> _Clock:
            return _Clock(metric.period, now + metric.period, now, before)

        times = proc.host_times()
        self._system = {m.type: clock(m, times) for m in self.config.system}
        self._runtimes = [
            (part, {m.type: clock(m, runtimes) for m in part.metrics})
            for part in self.config.runtimes
        ]
        system = {}
        if "memory_info" in self._system:
            system["memory_info"] = {"period": 0.0, **groups.memory_info(), "error": ""}
        reports = [
            _entry(runtime, {
                "memory_used": {"period": 0.0, **groups.memory_used(machine, runtime), "error": ""}
            })
            for part, clocks in self._runtimes
            for runtime in _chosen(part, runtimes)
            if "memory_used" in clocks
        ]  # fmt: skip
        return self._document(machine, reports, system)

    @property
    def due(self) -> float:
        """When the next document is due, by `time.monotonic()`."""
        return min(clock.due for clock in self._clocks())

    def _clocks(self) -> list[_Clock]:
        return [*self._system.values(), *(c for _, of in self._runtimes for c in of.values())]

    def collect(self, *, everything: bool = False) -> Document:
        """Collect the groups that are due, or all of them."""
        now, machine = time.monotonic(), self.look()
        runtimes = _runtimes(machine)

        def ends(clock: _Clock) -> float | None:
            """Seconds of the period of a group that is due; it begins anew."""
            if not everything and clock.due > now + 1e-3:
                return None
            passed, clock.last = now - clock.last, now
            # A tool that was stopped for a while skips what it missed.
            clock.due = max(clock.due + clock.period, now + clock.period / 2)
            return passed

        system = {}
        times = proc.host_times()
        for kind, clock in self._system.items():
            period = ends(clock)
            if period is None:
                continue
            before, clock.before = clock.before, times
            values = (
                groups.vcpu_usage(before, times) if kind == "vcpu_usage"
                else groups.memory_info() if kind == "memory_info"
                else groups.neuron_hw_counters(machine)
            )  # fmt: skip
            system[kind] = {"period": period, **values, "error": ""}
        reports: dict[tuple[int, int], tuple[Runtime, Document]] = {}
        for part, clocks in self._runtimes:
            chosen = _chosen(part, runtimes)
            for kind, clock in clocks.items():
                period = ends(clock)
                if period is None:
                    continue
                known: Mapping[tuple[int, int], Runtime]
                known, clock.before = {r.snapshot.identity: r for r in clock.before}, runtimes
                for runtime in chosen:
                    _, report = reports.setdefault(runtime.snapshot.identity, (runtime, {}))
                    report[kind] = self._group(kind, machine, known, runtime, period)
        entries = [_entry(runtime, report) for runtime, report in reports.values()]
        return self._document(machine, entries, system)

    def _group(
        self,
        kind: str,
        machine: Machine,
        known: Mapping[tuple[int, int], Runtime],
        now: Runtime,
        period: float,
    ) -> Document:
        """A group of a process. One that began within the period was idle before."""
        if kind == "memory_used":
            return {"period": period, **groups.memory_used(machine, now), "error": ""}
        before = known.get(now.snapshot.identity) or _newborn(now, period)
        seconds = now.snapshot.seconds - before.snapshot.seconds
        values = groups.OF_PERIOD[kind](machine, before, now, self.clock)
        return {"period": seconds, **values, "error": ""}

    def _document(self, machine: Machine, reports: list[Document], system: Document) -> Document:
        return {
            "neuron_runtime_data": reports,
            "system_data": system,
            "instance_info": instance_info(machine),
            "neuron_hardware_info": hardware_info(machine),
            # Ours: whose time was asked for, whose each process' numbers are, and how much of what
            # a process has run has a prediction.
            "torchneuron": {
                "emulated": True,
                "clock": self.clock,
                "clocks": {
                    str(process.pid): groups.clocks(process, self.clock)
                    for process in machine.processes
                },
                "predictions": {
                    str(process.pid): groups.predictions(process)
                    for process in machine.processes
                    if process.predicted is not None
                },
                "version": __version__,
            },
        }


def _runtimes(machine: Machine) -> list[Runtime]:
    return [Runtime.of(snapshot) for snapshot in machine.processes]


def _chosen(part: Runtimes, runtimes: list[Runtime]) -> list[Runtime]:
    return [r for r in runtimes if part.tags.search(r.snapshot.tag)]


def _newborn(now: Runtime, period: float) -> Runtime:
    """A process as it was before it did anything, when the period began."""
    snapshot = now.snapshot
    empty = tuple(
        type(core)(
            {name: value if name == "number" else 0 for name, value in core.numbers.items()},
            {name: (0,) * len(values) for name, values in core.series.items()},
            core.texts,
        )
        for core in snapshot.cores
    )
    ticks = snapshot.ticks - round(period * snapshot.header["clock_rate"])
    before = type(snapshot)(snapshot.header, empty, (), max(0, ticks), snapshot.seconds - period)
    return Runtime(before, (0.0, 0.0))


def _entry(runtime: Runtime, report: Document) -> Document:
    return {
        "pid": runtime.snapshot.pid,
        "address": "",
        "neuron_runtime_tag": runtime.snapshot.tag,
        "error": "",
        "report": report,
    }
