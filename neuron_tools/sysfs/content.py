"""What the files of the tree say. Names are those of the driver's sources and of its guide."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Final

from neuron_tools import memory, statuses
from neuron_tools.machine import Device, Machine
from neuron_tools.registry.reader import Snapshot, Values

#: Names that the guide uses for statuses of the driver.
ALIASES: Final = {
    "infer_completed_with_err": "execute_completed_with_error",
    "infer_completed_with_num_err": "execute_completed_with_num_error",
    "infer_failed_to_queue": "execute_failed_to_queue",
}
_DEVICE_MEMORY = (
    "collectives", "constants", "dma_rings", "driver_memory", "model_code",
    "model_shared_scratchpad", "nonshared_scratchpad", "notifications", "runtime_memory",
    "tensors", "uncategorized",
)  # fmt: skip
_HOST_MEMORY = (
    "application_memory", "constants", "dma_buffers", "dma_rings", "driver_memory",
    "notifications", "tensors", "uncategorized",
)  # fmt: skip
# The driver's words for a device, its cores, its instance and its name. Those of trn3 are in no
# published driver, so they stay empty.
_WORDS = {
    "trn1": ("NDv2", "NCv2", "Trn1", "Trainium1"),
    "trn1n": ("NDv2", "NCv2", "Trn1", "Trainium1"),
    "inf2": ("NDv3", "NCv2", "Inf2", "Inferentia2"),
    "trn2": ("NDv3", "NCv3", "Trn2", "Trainium2"),
}
_OTHER = (
    "flop_count", "inference_count", "model_load_count", "reset_fail_count", "reset_req_count",
    "nc_time_in_use",
)  # fmt: skip
Content = Iterator[tuple[str, str]]
#: Values of a core that only grow, as long as a process lives, and of its memory now; by path.
Counts = dict[str, int]


def fixed(machine: Machine, device: Device, clock: str) -> Content:
    """Files of a device that say the same whatever happens: paths below it, and texts."""
    words = _WORDS.get(machine.target.name, ("", "", "", ""))
    serial = hashlib.sha256(f"{machine.instance_type} {device.number}".encode()).hexdigest()[:16]
    yield "connected_devices", ", ".join(map(str, device.connected))
    yield "core_count", str(machine.cores_per_device)
    yield "reset", "0"
    yield "info/notify_delay", "-1"
    yield "info/serial_number", serial
    yield "info/architecture/arch_type", words[0]
    yield "info/architecture/instance_type", words[2]
    yield "info/architecture/device_name", words[3]
    for name in ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected"):
        yield f"stats/hardware/{name}", "0"
    for number in range(machine.cores_per_device):
        yield f"neuron_core{number}/info/architecture/arch_type", words[1]
        # Ours: whose time it is.
        yield f"neuron_core{number}/stats/other_info/nc_time_in_use/clock", clock


def power(now: float | None = None) -> str:
    """The file of a device's power, of which an emulated one has none."""
    return f"POWER_STATUS_NO_DATA,{int(time.time() if now is None else now)},0.00,0.00,0.00"


def host_memory(processes: list[Snapshot]) -> Content:
    """Files of a device about the host's memory."""
    held = dict.fromkeys(_HOST_MEMORY, 0)
    for process in processes:
        for name, size in memory.on_host(process).items():
            held[name] += size
    for name, size in held.items():
        yield f"stats/memory_usage/host_mem/{name}", str(size)


def nothing() -> Counts:
    """What somebody has done on a core who has done nothing, by the directory that counts it."""
    names = (*statuses.SYSFS, *ALIASES)
    found = dict.fromkeys((f"stats/status/{name}" for name in names), 0)
    return found | dict.fromkeys((f"stats/other_info/{name}" for name in _OTHER), 0)


def growing(process: Snapshot, core: Values, clock: str) -> Counts:
    """What a process has done on a core, by the directory that counts it.

    `nc_time_in_use` is of one clock: by the model, of processes that keep predicted times.
    """
    if clock == "model":
        predicted = process.predicted_on(core)
        microseconds = predicted.ns // 1000 if predicted else 0
    else:
        microseconds = process.busy_ticks(core) * 10**6 // process.header["clock_rate"]
    found = nothing()
    succeeded = statuses.completed(core)
    found["stats/status/success"] = succeeded
    failed = statuses.failures(core)
    for status, count in failed.items():
        found[f"stats/status/{statuses.NAMES[status].sysfs}"] += count
    for alias, name in ALIASES.items():
        found[f"stats/status/{alias}"] = found[f"stats/status/{name}"]
    other = {
        "flop_count": core["flops"] // 2,  # multiplications with an addition
        "inference_count": succeeded + sum(failed.values()),
        "model_load_count": core["program_loads"],
        "nc_time_in_use": microseconds,
    }
    return found | {f"stats/other_info/{name}": value for name, value in other.items()}


def present(core: Values | None) -> Counts:
    """The memory of a core that a process holds now; nobody's without one.

    Memory of the host is a device's, and none of it is a core's own.
    """
    held = dict.fromkeys(_DEVICE_MEMORY, 0)
    if core is not None:
        held |= memory.on_core(core)
    here = {f"stats/memory_usage/device_mem/{name}": size for name, size in held.items()}
    return here | dict.fromkeys((f"stats/memory_usage/host_mem/{n}" for n in _HOST_MEMORY), 0)
