"""Interleaved timing of one workload on two devices, and whether the machine was quiet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

# A sample shorter than this is mostly the clock and the scheduler; short workloads are repeated.
SAMPLE_SECONDS = 0.01

Step = Callable[[], object]


@dataclass(frozen=True)
class Target:
    """What a workload should reach. `speedup` is time on cpu / time on neuron, at least."""

    speedup: float
    text: str


def at_least(speedup: float) -> Target:
    """At least so many times faster than cpu."""
    return Target(speedup, f">= {speedup:g}x")


def time_at_most(factor: float) -> Target:
    """At most so many times the time of cpu."""
    return Target(1 / factor, f">= {1 / factor:.2f}x (time <= {factor:g}x)")


@dataclass(frozen=True)
class Workload:
    """A named piece of work. `make(device)` builds its tensors and returns what is timed."""

    name: str
    target: Target
    make: Callable[[torch.device], Step]


@dataclass(frozen=True)
class Timing:
    """The fastest sample on each device, in milliseconds per step."""

    cpu_ms: float
    neuron_ms: float

    @property
    def speedup(self) -> float:
        return self.cpu_ms / self.neuron_ms


def sample(step: Step, times: int) -> float:
    """Seconds per step over `times` steps, with the device's queue drained at the end."""
    start = time.perf_counter()
    for _ in range(times):
        step()
    torch.accelerator.synchronize()
    return (time.perf_counter() - start) / times


def measure(workload: Workload, repeats: int) -> Timing:
    """Time both devices in turn, `repeats` times, after a warm-up; keep the fastest of each.

    Interleaving makes slow drifts of the machine (clock, other tenants) hit both alike, and the
    minimum is the sample that was disturbed least.
    """
    steps = [workload.make(torch.device(name)) for name in ("cpu", "neuron")]
    for step in steps:
        sample(step, 2)
    once = max(sample(step, 1) for step in steps)
    times = max(1, round(SAMPLE_SECONDS / once))
    for step in steps:
        sample(step, times)
    samples = [[sample(step, times) for step in steps] for _ in range(repeats)]
    cpu, neuron = (1000 * min(column) for column in zip(*samples, strict=True))
    return Timing(cpu, neuron)


def load() -> float:
    """The machine's load average over the last minute."""
    return os.getloadavg()[0]


class OtherWork:
    """How many cores the rest of the machine kept busy since this object was made."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._others = self._others_seconds()

    def cores(self) -> float:
        """Mean number of cores used by other processes; 0.0 on an otherwise idle machine."""
        elapsed = max(time.monotonic() - self._wall, 1e-9)
        return max(0.0, (self._others_seconds() - self._others) / elapsed)

    @staticmethod
    def _others_seconds() -> float:
        """CPU seconds used by all other processes since the machine started (proc(5), stat)."""
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
        )
        busy = user + nice + system + irq + softirq + steal
        own = os.times()
        mine = own.user + own.system + own.children_user + own.children_system
        return busy / os.sysconf("SC_CLK_TCK") - mine
