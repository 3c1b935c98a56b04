"""What Linux says about processes and the host, in /proc."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: The columns of a processor's line in /proc/stat, as neuron-monitor names them.
CPU_STATES = ("user", "nice", "system", "idle", "io_wait", "irq", "soft_irq")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on; [] if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is a name in brackets that may hold anything.
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int:
    """When a process began, in ticks since the computer did; 0 if there is none or it has ended."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else 0


def pid_namespace() -> int:
    """The number of the namespace that this process' numbers of processes are of."""
    return Path("/proc/self/ns/pid").stat().st_ino


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Seconds that a process has computed, for itself and within the kernel."""
    fields = _stat(pid)
    if len(fields) < 13:
        return 0.0, 0.0
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def command(pid: int) -> str:
    """The command line of a process, in one line; "" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    return _UNPRINTABLE.sub("?", b" ".join(words).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Seconds that processors spent in each state, since the computer began; context switches.

    Attributes:
        total: Of all processors together, in the order of CPU_STATES.
        each: Of each processor, by number.
        switches: Of contexts.
    """

    total: tuple[float, ...]
    each: dict[int, tuple[float, ...]]
    switches: int


def host_times() -> HostTimes:
    """Read /proc/stat."""
    total: tuple[float, ...] = (0.0,) * len(CPU_STATES)
    each, switches = {}, 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *values = line.split()
        if name == "ctxt":
            switches = int(values[0])
        elif name.startswith("cpu"):
            seconds = tuple(int(value) / _TICKS for value in values[: len(CPU_STATES)])
            if name == "cpu":
                total = seconds
            else:
                each[int(name[3:])] = seconds
    return HostTimes(total, each, switches)


def host_memory() -> dict[str, int]:
    """The memory of the host and of its swap, in all and in use, in bytes."""
    found = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        found[name] = int(value.split()[0]) << 10
    available = found.get("MemAvailable", found["MemFree"])
    return {
        "memory_total_bytes": found["MemTotal"],
        "memory_used_bytes": found["MemTotal"] - available,
        "swap_total_bytes": found["SwapTotal"],
        "swap_used_bytes": found["SwapTotal"] - found["SwapFree"],
    }
