"""Files of processes, written by the test as the native core would."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuron_tools import proc
from neuron_tools.registry.layout import LAYOUT, MAGIC, Record

RATE = 10**9  # ticks in a second, so that ticks are nanoseconds


def bucket(ticks: int) -> int:
    """The bucket of a latency, found by looking for it."""
    from neuron_tools.registry.buckets import bounds  # noqa: PLC0415 - what is tested

    return next(b for b in range(352) if bounds(b)[0] <= ticks < bounds(b)[1])


@dataclass
class Core:
    """A core's record: its number, other numbers, failures by status, latencies in nanoseconds."""

    number: int
    values: dict[str, int] = field(default_factory=dict)
    failures: dict[int, int] = field(default_factory=dict)
    latencies: Sequence[int] = ()
    waited: Sequence[tuple[int, int]] = ()  # of enqueued executions: running, in all


@dataclass
class Process:
    """A process' file.

    Attributes:
        header: Numbers and texts that differ from those of an idle trn2 process.
        cores: Of the process.
        programs: Name, core and bytes of constants of those that are loaded.
    """

    header: dict[str, int | str] = field(default_factory=dict)
    cores: list[Core] = field(default_factory=list)
    programs: list[tuple[str, int, int]] = field(default_factory=list)

    def content(self) -> bytes:
        """The file."""
        pid = int(self.header.get("pid", os.getpid()))
        header: dict[str, int | str] = {
            "magic": MAGIC, "version": LAYOUT.version, "header_bytes": LAYOUT.header.size,
            "core_bytes": LAYOUT.core.size, "program_bytes": LAYOUT.program.size,
            "cores": len(self.cores), "programs": 256, "pid": pid,
            "start_time": proc.start_time(pid), "pid_namespace": proc.pid_namespace(),
            "clock_rate": RATE, "clock_ticks": 0, "clock_ns": time.monotonic_ns(), "lnc": 2,
            "chips": 1, "target": "trn2", "runtime_version": "0.1.0", "tag": "",
        }  # fmt: skip
        header |= self.header
        parts = [_record(LAYOUT.header, header)]
        for core in self.cores:
            series: dict[str, dict[int, int]] = {"failures": {}, "at_call": {}}
            for status, count in core.failures.items():
                series["failures"][LAYOUT.statuses.index(status)] = count
            _count(series, "at_call", core.latencies)
            _count(series, "enqueued_running", [running for running, _ in core.waited])
            _count(series, "enqueued_total", [total for _, total in core.waited])
            parts.append(_record(LAYOUT.core, core.values | {"number": core.number}, series))
        for place in range(256):
            values: dict[str, int | str] = {}
            if place < len(self.programs):
                name, core_index, constants = self.programs[place]
                values = {"serial": place + 1, "core": core_index, "name": name,
                          "constant_bytes": constants, "scratchpad_bytes": 0}  # fmt: skip
            parts.append(_record(LAYOUT.program, values))
        return b"".join(parts)

    def write(self, folder: Path) -> Path:
        """Put it where the tools look."""
        pid = int(self.header.get("pid", os.getpid()))
        start = self.header.get("start_time", proc.start_time(pid))
        folder.mkdir(exist_ok=True, mode=0o700)
        path = folder / f"{pid}-{start}-{proc.pid_namespace()}"
        path.write_bytes(self.content())
        return path


def _count(series: dict[str, dict[int, int]], name: str, latencies: Sequence[int]) -> None:
    for latency in latencies:
        place = bucket(latency)
        counts = series.setdefault(name, {})
        counts[place] = counts.get(place, 0) + 1


def _record(
    record: Record,
    values: Mapping[str, int | str],
    series: Mapping[str, Mapping[int, int]] | None = None,
) -> bytes:
    content = bytearray(record.size)
    for name, value in values.items():
        if isinstance(value, str):
            offset, size = record.texts[name]
            data = value.encode()[: size - 1]
            content[offset : offset + len(data)] = data
        else:
            struct.pack_into("=Q", content, record.numbers[name], value)
    for name, counts in (series or {}).items():
        offset, length = record.series[name]
        for place, count in counts.items():
            assert place < length
            struct.pack_into("=Q", content, offset + 8 * place, count)
    return bytes(content)
