"""Keeping the tree: what ended processes did is added up, and what a user clears starts anew.

A counter is a directory: `present` is of the processes that live, `total` also of those that ended
while the tree was kept; of memory, `total` is what was taken ever and `peak` the most that was held
at once, as far as the keeper saw it. A file that somebody has written to counts from there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from neuron_tools.machine import Machine, ToolError
from neuron_tools.registry.reader import Snapshot
from neuron_tools.sysfs import content
from neuron_tools.sysfs.content import Counts

_Core = tuple[int, int]  # a device, and a core of it


class Tree:
    """The tree below a directory.

    Args:
        root: The directory; it is made if there is none.
        clock: Whose time `nc_time_in_use` is, "host" or "model".
    """

    def __init__(self, root: Path, clock: str = "host") -> None:
        self.root, self.clock = root, clock
        self._below = f"{root}/"
        self._written: dict[str, tuple[str, int]] = {}  # texts, and when they were written
        self._cleared: Counts = {}
        self._ended: dict[_Core, Counts] = defaultdict(dict)
        self._living: dict[tuple[int, int], dict[_Core, Counts]] = {}
        self._held: dict[_Core, Counts] = {}
        self._taken: dict[_Core, Counts] = defaultdict(dict)
        self._peak: dict[_Core, Counts] = defaultdict(dict)

    def update(self, machine: Machine) -> None:
        """Write what the machine and its processes are like now.

        Raises:
            ToolError: The directory cannot be written to.
        """
        try:
            self._update(machine)
        except OSError as error:
            raise ToolError(f"the tree below {self.root} cannot be written: {error}") from error

    def _update(self, machine: Machine) -> None:
        living = {p.identity: _grown(machine, p, self.clock) for p in machine.processes}
        for identity in self._living.keys() - living.keys():
            for core, counts in self._living[identity].items():
                _add(self._ended[core], counts)
        self._living = living
        held = _held(machine)
        self._note(held)
        for device in machine.devices:
            path = f"neuron{device.number}"
            for name, text in content.fixed(machine, device, self.clock):
                self._write(f"{path}/{name}", text)
            for name, text in content.host_memory(machine.users(device)):
                self._write(f"{path}/{name}", text)
            self._write(f"{path}/stats/power/utilization", content.power())
            for number in range(machine.cores_per_device):
                core = device.number, number
                self._write_core(core, f"{path}/neuron_core{number}", held[core])

    def _note(self, held: dict[_Core, Counts]) -> None:
        """Note how much memory has been taken since the last time, and what is the most."""
        for core, counts in held.items():
            before, taken, peak = self._held.get(core, {}), self._taken[core], self._peak[core]
            for name, size in counts.items():
                taken[name] = taken.get(name, 0) + max(0, size - before.get(name, 0))
                peak[name] = max(peak.get(name, 0), size)
        self._held = held

    def _write_core(self, core: _Core, below: str, held: Counts) -> None:
        now = content.nothing()
        for of in self._living.values():
            _add(now, of.get(core, {}))
        for name, value in now.items():
            self._count(f"{below}/{name}/present", value)
            self._count(f"{below}/{name}/total", value + self._ended[core].get(name, 0))
        for name, size in held.items():
            self._write(f"{below}/{name}/present", str(size))
            self._count(f"{below}/{name}/total", self._taken[core][name])
            self._write(f"{below}/{name}/peak", str(self._peak[core][name]))

    def _count(self, name: str, value: int) -> None:
        """Write a counter. One that somebody else wrote to counts from here on."""
        # What counts the living falls when one of them ends.
        cleared = min(self._cleared.get(name, 0), value)
        touched = self._touched(name)
        if touched:
            cleared = value
        self._cleared[name] = cleared
        self._write(name, str(value - cleared), touched=touched)

    def _touched(self, name: str) -> bool:
        """Return whether somebody else has written to a file of ours."""
        known = self._written.get(name)
        try:
            # Not pathlib's, which takes five times as long: of a large machine there are thousands.
            return known is not None and os.stat(f"{self._below}{name}").st_mtime_ns != known[1]  # noqa: PTH116
        except FileNotFoundError:
            return False

    def _write(self, name: str, text: str, *, touched: bool | None = None) -> None:
        known = self._written.get(name)
        if touched is None:
            touched = self._touched(name)
        if known is not None and known[0] == text and not touched:
            return
        path = self.root / name
        if known is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f".{path.name}.{os.getpid()}")
        whole.write_text(f"{text}\n", encoding="utf-8")
        whole.replace(path)
        self._written[name] = text, path.stat().st_mtime_ns


def _add(sums: Counts, more: Counts) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value


def _grown(machine: Machine, process: Snapshot, clock: str) -> dict[_Core, Counts]:
    return {
        divmod(core["number"], machine.cores_per_device): content.growing(process, core, clock)
        for core in process.used_cores
    }


def _held(machine: Machine) -> dict[_Core, Counts]:
    found = {
        (device.number, number): content.present(None)
        for device in machine.devices
        for number in range(machine.cores_per_device)
    }
    for process in machine.processes:
        for core in process.used_cores:
            place = divmod(core["number"], machine.cores_per_device)
            if place in found:
                _add(found[place], content.present(core))
    return found


_TREES: dict[Path, Tree] = {}


def keep(machine: Machine, root: Path, clock: str) -> None:
    """Update the tree below a directory, which this process keeps.

    Raises:
        ToolError: The directory cannot be written to.
    """
    _TREES.setdefault(root, Tree(root, clock)).update(machine)
