"""Reading the files: one, or those of all processes that live.

A file may be truncated, of another version, or somebody's joke: all of it is looked at before it is
believed, and whatever it says is bounded by its size.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuron_tools import proc
from neuron_tools.registry import predicted
from neuron_tools.registry.layout import LAYOUT, MAGIC, Record
from neuron_tools.registry.place import directory
from neuron_tools.registry.predicted import Predicted
from neuronxcc.files import read_regular

_MOST_BYTES = 4 << 20
_MOST_CORES = 64
_MOST_PROGRAMS = 4096
_CLOCKS = (10**6, 10**11)  # ticks in a second that a clock may have
_NAME = re.compile(r"(\d{1,10})-(\d{1,20})-(\d{1,20})", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class RegistryError(ValueError):
    """A file that is not what a process of this version keeps; the message says why."""


@dataclass(frozen=True, slots=True)
class Values:
    """A record: its numbers by name, its series, its texts."""

    numbers: Mapping[str, int]
    series: Mapping[str, Sequence[int]]
    texts: Mapping[str, str]

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a process said at a time.

    Attributes:
        header: Of the file.
        cores: A record for each of its cores; the process' device `neuron:i` is number i.
        programs: Those that are loaded.
        ticks: The time by the process' own clock.
        seconds: The time by `time.monotonic()`.
        predicted: What its programs were predicted to take, core by core; None if it keeps none.
    """

    header: Values
    cores: tuple[Values, ...]
    programs: tuple[Values, ...]
    ticks: int
    seconds: float
    predicted: tuple[Predicted, ...] | None = None

    def predicted_on(self, core: Values) -> Predicted | None:
        """What programs on a core were predicted to take; None if the process keeps none."""
        index = [one["number"] for one in self.cores].index(core["number"])
        return None if self.predicted is None else self.predicted[index]

    @property
    def pid(self) -> int:
        """The process' number."""
        return self.header["pid"]

    @property
    def identity(self) -> tuple[int, int]:
        """What no other process has: its number and the time at which it began."""
        return self.pid, self.header["start_time"]

    @property
    def tag(self) -> str:
        """NEURON_PROCESS_TAG of the process, or its number."""
        return self.header.texts["tag"] or str(self.pid)

    @property
    def used_cores(self) -> list[Values]:
        """Those of its cores that the process has used."""
        signs = ("reserved_bytes", "busy_ticks", "busy_since", "programs_loaded", "collectives")
        return [core for core in self.cores if any(core[sign] for sign in signs)]

    def busy_ticks(self, core: Values) -> int:
        """Ticks that a core has been in use, with what has passed of the execution that runs."""
        since = core["busy_since"]
        return core["busy_ticks"] + (max(0, self.ticks - since) if since else 0)


def _values(record: Record, content: bytes, start: int) -> Values:
    def numbers(offset: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"={count}Q", content, start + offset)

    def text(offset: int, size: int) -> str:
        found = content[start + offset : start + offset + size].split(b"\0", 1)[0]
        # It goes to terminals.
        return _UNPRINTABLE.sub("?", found.decode("utf-8", "replace"))

    return Values(
        {name: numbers(offset, 1)[0] for name, offset in record.numbers.items()},
        {name: numbers(*place) for name, place in record.series.items()},
        {name: text(*place) for name, place in record.texts.items()},
    )


def parse(content: bytes, now_ns: int | None = None) -> Snapshot:
    """Read the content of a file.

    Args:
        content: All of it.
        now_ns: The time by CLOCK_MONOTONIC at which it was read; now if None.

    Raises:
        RegistryError: It is not what a process of this version keeps.
    """
    now = time.monotonic_ns() if now_ns is None else now_ns
    if len(content) < LAYOUT.header.size:
        raise RegistryError(f"it has {len(content)} bytes, fewer than its header")
    header = _values(LAYOUT.header, content, 0)
    if header["magic"] != MAGIC:
        raise RegistryError("it is not the file of a process that uses the device")
    if header["version"] != LAYOUT.version:
        raise RegistryError(
            f"it is of version {header['version']}, this tool reads version {LAYOUT.version}"
        )
    wanted = {
        "header_bytes": LAYOUT.header.size,
        "core_bytes": LAYOUT.core.size,
        "program_bytes": LAYOUT.program.size,
    }
    if any(header[name] != size for name, size in wanted.items()):
        raise RegistryError("its parts have other sizes than those of its version")
    cores, places = header["cores"], header["programs"]
    if cores > _MOST_CORES or places > _MOST_PROGRAMS:
        raise RegistryError(f"it claims {cores} cores and {places} places of programs")
    first_program = LAYOUT.header.size + cores * LAYOUT.core.size
    size = first_program + places * LAYOUT.program.size
    if len(content) < size:
        raise RegistryError(f"it has {len(content)} bytes instead of {size}")
    low, high = _CLOCKS
    if not low <= header["clock_rate"] <= high or not 0 < header["pid"] < 1 << 31:
        raise RegistryError("its clock or its process number is impossible")
    programs = [
        _values(LAYOUT.program, content, first_program + i * LAYOUT.program.size)
        for i in range(places)
    ]
    passed = max(0, now - header["clock_ns"])
    return Snapshot(
        header,
        tuple(
            _values(LAYOUT.core, content, LAYOUT.header.size + i * LAYOUT.core.size)
            for i in range(cores)
        ),
        tuple(p for p in programs if p["serial"] != 0 and p["core"] < cores),
        header["clock_ticks"] + passed * header["clock_rate"] // 10**9,
        now / 1e9,
    )


def read(path: Path) -> Snapshot:
    """Read a file.

    Raises:
        OSError: It is gone, or not to be read: another user's, a link, a pipe.
        RegistryError: It is not what a process of this version keeps.
    """
    # Read whole, not mapped: a mapped file that shrinks would end the reader.
    found = parse(read_regular(path, _MOST_BYTES))
    times = predicted.read(path)
    return replace(found, predicted=times) if times and len(times) == len(found.cores) else found


@dataclass(frozen=True, slots=True)
class Found:
    """The processes that were found, and the files that were not believed, with the reason."""

    processes: tuple[Snapshot, ...] = ()
    damaged: tuple[tuple[Path, str], ...] = ()


def processes(environ: Mapping[str, str] | None = None) -> Found:
    """Read what all processes of this user say that live, by number.

    Files that dead processes left are skipped, as are those of other containers, whose processes
    cannot be asked.

    Args:
        environ: The environment; that of the process if None.
    """
    folder = directory(environ)
    if folder is None:
        return Found()
    try:
        entries = sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return Found()
    space = proc.pid_namespace()
    living, damaged = [], []
    for entry in entries:
        name = _NAME.fullmatch(entry)
        if name is None or int(name[3]) != space or proc.start_time(int(name[1])) != int(name[2]):
            continue
        try:
            snapshot = read(folder / entry)
        except FileNotFoundError:  # it has ended meanwhile
            continue
        except (OSError, RegistryError) as error:
            damaged.append((folder / entry, str(error)))
            continue
        if snapshot.identity == (int(name[1]), int(name[2])):
            living.append(snapshot)
        else:
            damaged.append((folder / entry, "it is another process' file"))
    living.sort(key=_by_pid)
    return Found(tuple(living), tuple(damaged))


def _by_pid(snapshot: Snapshot) -> Any:
    return snapshot.identity
