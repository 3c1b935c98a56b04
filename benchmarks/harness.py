"""Interleaved timing of one workload on two devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

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
