"""The groups of metrics: what each says of a period, from what was known at its two ends."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_tools import latency, memory, statuses
from neuron_tools.machine import Machine, clock_of, device_cores
from neuron_tools.proc import CPU_STATES, HostTimes, cpu_seconds, host_memory, host_times
from neuron_tools.registry.predicted import NOTHING, Predicted
from neuron_tools.registry.reader import Snapshot, Values

Group = dict[str, Any]
_ECC = (
    "mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_uncorrected", "sram_ecc_corrected",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Runtime:
    """A process at a time: what it said, and the seconds that it has computed."""

    snapshot: Snapshot
    cpu: tuple[float, float]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Runtime:
        """Look at a process."""
        return cls(snapshot, cpu_seconds(snapshot.pid))


def _cores(machine: Machine, before: Runtime, now: Runtime) -> list[tuple[Values, Values]]:
    """The cores that a process uses, at both ends of the period."""
    numbers = {core["number"]: core for core in before.snapshot.cores}
    used = device_cores(machine, now.snapshot)
    return [(numbers[core["number"]], core) for core in used if core["number"] in numbers]


def utilization(
    before: Snapshot, now: Snapshot, first: Values, last: Values, clock: str = "host"
) -> float:
    """Percent of the period that a core was in use by a process.

    Several threads of a process may use a core at a time, so the sum may be more than there was.
    By the model it is the share of the period that a NeuronCore would have taken for what ran.
    """
    passed = now.seconds - before.seconds
    if clock_of(now, clock) == "model":
        busy = (_predicted(now, last).ns - _predicted(before, first).ns) / 1e9
    else:
        busy = (now.busy_ticks(last) - before.busy_ticks(first)) / now.header["clock_rate"]
    return min(100.0, max(0.0, 100 * busy / passed)) if passed > 0 else 0.0


def _predicted(process: Snapshot, core: Values) -> Predicted:
    """What is predicted; nothing before a process began to keep it."""
    return process.predicted_on(core) or NOTHING


def neuroncore_counters(machine: Machine, before: Runtime, now: Runtime, clock: str) -> Group:
    """How busy the cores are that a process uses, and how many FLOPs their engines did a second."""
    in_use = {}
    seconds = now.snapshot.seconds - before.snapshot.seconds
    for first, last in _cores(machine, before, now):
        percent = utilization(before.snapshot, now.snapshot, first, last, clock)
        flops = max(0, last["flops"] - first["flops"])
        core: Group = {
            "neuroncore_utilization": percent,
            "flops": round(flops / seconds) if seconds > 0 else 0,
        }
        if machine.lnc > 1:
            # An emulated logical core is one: its parts are as busy as it is.
            core[machine.core_version] = {
                f"nc_{machine.target.core.version}.{number}": {"neuroncore_utilization": percent}
                for number in machine.physical(last["number"])
            }
        in_use[str(last["number"])] = core
    return {"neuroncores_in_use": in_use}


def execution_stats(machine: Machine, before: Runtime, now: Runtime, clock: str) -> Group:
    """What became of the executions of the period, and how long they took.

    By the model `device_latency` is what programs were predicted to take; `total_latency`, which
    has the waiting on this host in it, is always the host's.
    """
    model = clock_of(now.snapshot, clock) == "model"
    outcomes = dict.fromkeys(statuses.OUTCOMES, 0)
    errors = dict.fromkeys(statuses.ERRORS, 0)
    running: list[int] = []
    total: list[int] = []
    for first, last in _cores(machine, before, now):
        for sums, old, new in zip(
            (outcomes, errors), statuses.summaries(first), statuses.summaries(last), strict=True
        ):
            for name, count in new.items():
                sums[name] += max(0, count - old[name])
        histograms = (
            [_predicted(of.snapshot, core).latencies for of, core in ((before, first), (now, last))]
            if model
            else [latency.running(first), latency.running(last)]
        )
        running = _added(running, *histograms)
        total = _added(total, latency.total(first), latency.total(last))
    rate = now.snapshot.header["clock_rate"]
    return {
        "error_summary": errors,
        "execution_summary": outcomes,
        "latency_stats": {
            "total_latency": latency.percentiles(total, rate),
            "device_latency": latency.percentiles(running, 10**9 if model else rate),
        },
    }


def _added(sums: Sequence[int], first: Sequence[int], last: Sequence[int]) -> list[int]:
    passed = [max(0, b - a) for a, b in zip(first, last, strict=True)]
    return [a + b for a, b in zip(sums, passed, strict=True)] if sums else passed


def memory_used(machine: Machine, now: Runtime) -> Group:
    """The memory that a process holds, by category, and the programs that it has loaded."""
    cores = device_cores(machine, now.snapshot)
    by_core = {str(core["number"]): memory.on_core(core) for core in cores}
    host = memory.on_host(now.snapshot)
    return {
        "neuron_runtime_used_bytes": {
            "host": sum(host.values()),
            "neuron_device": sum(sum(of.values()) for of in by_core.values()),
            "usage_breakdown": {"host": host, "neuroncore_memory_usage": by_core},
        },
        "loaded_models": [_model(machine, now.snapshot, p) for p in now.snapshot.programs],
    }


def _model(machine: Machine, process: Snapshot, program: Values) -> Group:
    core = process.cores[program["core"]]["number"]
    said = f"{process.identity} {program['serial']}"
    return {
        "name": program.texts["name"],
        # The same program in the same process keeps it; no other has it.
        "uuid": uuid.uuid5(uuid.NAMESPACE_OID, said).hex,
        "model_id": program["serial"],
        "is_running": True,
        "subgraphs": {
            "sg_00": {
                "memory_used_bytes": memory.of_program(program),
                "neuroncore_index": core % machine.cores_per_device,
                "neuron_device_index": core // machine.cores_per_device,
            }
        },
    }


def neuron_runtime_vcpu_usage(_: Machine, before: Runtime, now: Runtime, _2: str) -> Group:
    """How busy a process keeps the host's processors, in percent of all of them."""
    seconds = now.snapshot.seconds - before.snapshot.seconds
    count = len(host_times().each) or 1
    user, system = (
        min(100.0, max(0.0, 100 * (b - a) / seconds / count)) if seconds > 0 else 0.0
        for a, b in zip(before.cpu, now.cpu, strict=True)
    )
    return {"vcpu_usage": {"user": user, "system": system}}


def clocks(process: Snapshot, clock: str) -> dict[str, str]:
    """Return whose time each number of a process is that has to do with time."""
    said = clock_of(process, clock)
    return {
        "neuroncore_utilization": said, "device_latency": said, "total_latency": "host",
        "flops": "host", "vcpu_usage": "host",
    }  # fmt: skip


def predictions(process: Snapshot) -> dict[str, int]:
    """Return how many executions succeeded, and of how many of them the predicted times are.

    The rest are those of programs and operators without a prediction ("unpredicted"), and calls of
    operators whose prediction is still being made.
    """
    kept = process.predicted or ()
    return {
        "executions": sum(sum(latency.running(core)) for core in process.cores),
        "predicted": sum(core.executions for core in kept),
        "unpredicted": sum(core.unpredicted for core in kept),
    }


#: Groups of a process that say something of a period, by the clock that is asked for.
OF_PERIOD: Final[Mapping[str, Callable[[Machine, Runtime, Runtime, str], Group]]] = {
    "neuroncore_counters": neuroncore_counters,
    "execution_stats": execution_stats,
    "neuron_runtime_vcpu_usage": neuron_runtime_vcpu_usage,
}


def _shares(first: Sequence[float], last: Sequence[float]) -> dict[str, float]:
    passed = [max(0.0, b - a) for a, b in zip(first, last, strict=True)]
    whole = sum(passed)
    return {
        state: 100 * part / whole if whole else 0.0
        for state, part in zip(CPU_STATES, passed, strict=True)
    }


def vcpu_usage(before: HostTimes, now: HostTimes) -> Group:
    """How the host's processors spent the period, in percent."""
    return {
        "average_usage": _shares(before.total, now.total),
        "usage_data": {
            str(cpu): _shares(before.each.get(cpu, times), times) for cpu, times in now.each.items()
        },
        "context_switch_count": max(0, now.switches - before.switches),
    }


def memory_info() -> Group:
    """The host's memory."""
    return dict(host_memory())


def neuron_hw_counters(machine: Machine) -> Group:
    """Memory errors of the chips. An emulated chip has none."""
    return {
        "neuron_devices": [
            {"neuron_device_index": device.number, **dict.fromkeys(_ECC, 0)}
            for device in machine.devices
        ]
    }
