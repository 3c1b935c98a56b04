"""The host while a profile is taken: use of its processors and memory, from /proc."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

from neuron_tools.explorer.session import Sample

_PERIOD = 0.05  # seconds
_STAT, _MEMORY, _OWN = Path("/proc/stat"), Path("/proc/meminfo"), Path("/proc/self/statm")


class Sampler:
    """Samples in a thread of its own, from construction to `stop`.

    Args:
        cpu: Sample how much of each processor is in use, in percent of the time.
        memory: Sample the memory of this process and of the host.
    """

    def __init__(self, *, cpu: bool, memory: bool) -> None:
        self.cpu: list[Sample] = []
        self.memory: list[Sample] = []
        self._want_cpu, self._want_memory = cpu, memory
        self._before: dict[str, tuple[int, int]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neuron-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; samples stay."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            ends = self._end.is_set()  # then there is a last sample, also of a short profile
            now = time.time_ns()
            if self._want_cpu:
                self._sample_cpu(now)
            if self._want_memory:
                self._sample_memory(now)
            if ends:
                return
            self._end.wait(_PERIOD)

    def _sample_cpu(self, now: int) -> None:
        for line in _STAT.read_text().splitlines():
            name, *fields = line.split()
            if not name.startswith("cpu") or name == "cpu":
                continue
            times = list(map(int, fields[:8]))  # guests are in user time already
            idle, total = times[3] + times[4], sum(times)
            before = self._before.get(name)
            if before is not None and total > before[1]:
                used = 100 * (1 - (idle - before[0]) / (total - before[1]))
                self.cpu.append(Sample(now, name.removeprefix("cpu"), round(used, 2)))
            if before is None or total > before[1]:
                self._before[name] = idle, total

    def _sample_memory(self, now: int) -> None:
        pages = int(_OWN.read_text().split()[1])
        self.memory.append(Sample(now, "used_bytes", pages * resource.getpagesize()))
        known = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in _MEMORY.read_text().splitlines())
            if name in {"MemTotal", "MemAvailable"}
        }
        used = 100 * (1 - known["MemAvailable"] / known["MemTotal"])
        self.memory.append(Sample(now, "used_percent", round(used, 2)))
