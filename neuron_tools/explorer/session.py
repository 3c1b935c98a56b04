"""A profile on disk: the documented layout of directories, with contents of our own.

    <output>/<instance>_pid_<pid>/<time>/
        profile_nc_0_session_0.ntff   what core 0 did
        ntrace.pb                     what the runtime and the framework did
        trace_info.pb                 when and of what machine
        cpu_util.pb, host_mem.pb      the host meanwhile, if asked for
        trace.json                    torch.profiler's trace, if there was one

Names and places are AWS'; what their `.ntff` and `.pb` files contain is not public. These are
lines of JSON, the first of which says so.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from neuronxcc.files import read_regular, write_whole
from neuronxcc.tables import MOST_BYTES

FORMAT = "TorchNeuron profile"
VERSION = 1
RUNTIME_FILE, INFO_FILE, CPU_FILE, MEMORY_FILE = (
    "ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb",
)  # fmt: skip
TRACE_FILE = "trace.json"
ABOUT_FILE = "Metadata.parquet"  # of a prediction
_DEVICE_FILE = re.compile(r"profile_nc_(\d+)_session_\d+\.ntff")
_HARDWARE = frozenset({"kernel", "copy", "program", "communication"})
_PREDICTED = frozenset({"instruction", "transfer", "row"})


class SessionError(ValueError):
    """A directory or a file is no profile that can be read; the text says what to do."""


class Event(NamedTuple):
    """Something that took time.

    Attributes:
        name: of it.
        kind: "kernel", "copy", "program" or "communication" on a core; "issue" by which the host
            gave a core work; "operator" and "annotation" of the framework. Of a prediction
            "instruction" and "transfer", or "row" of an estimate.
        start: nanoseconds since the epoch.
        end: likewise.
        core: its NeuronCore, or -1.
        row: the stream of a core; 1000 and more for groups of ranks; the thread on the host.
        facts: what else is known of it.
    """

    name: str
    kind: str
    start: int
    end: int
    core: int
    row: int
    facts: dict[str, Any]

    @property
    def source(self) -> str:
        """Who saw it: `neuron_hw`, `neuron_rt` or `framework`, as Explorer calls them."""
        if self.kind in _HARDWARE | _PREDICTED:
            return "neuron_hw"
        return "neuron_rt" if self.kind == "issue" else "framework"


class Sample(NamedTuple):
    """A measurement of the host: time in nanoseconds since the epoch, of what, how much."""

    time: int
    of: str
    value: float


@dataclass
class Session:
    """A profile.

    Attributes:
        events: by source and start.
        cpu: percent in use by processor.
        memory: bytes in use by the process ("used_bytes"), and of the host's ("used_percent").
        info: of the process and the machine.
        folder: where it was read from.
        rows: of a prediction: names of the rows that events have.
        summary: of a prediction: what Explorer's table Summary says; None: it was measured.
        recommended: of a prediction: what its rules found, each with the name of its rule.
        notes: of a prediction: what is not modelled.
    """

    events: list[Event] = field(default_factory=list)
    cpu: list[Sample] = field(default_factory=list)
    memory: list[Sample] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    rows: dict[int, str] = field(default_factory=dict)
    summary: dict[str, Any] | None = None
    recommended: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_simulation(self) -> bool:
        """Whether its times are a prediction of hardware, and not this host's."""
        return self.summary is not None

    @property
    def start(self) -> int:
        """The time that is shown as 0: the first event's, or that of a prediction's beginning."""
        return 0 if self.is_simulation else min((event.start for event in self.events), default=0)

    @property
    def time_source(self) -> str:
        """Whose times they are, in a sentence."""
        if not self.is_simulation:
            return "Measured on the host that emulates the cores; it says nothing about hardware."
        return f"Predicted for {self.info['target']} ({self.info['model']}); nothing was measured."


def new_folder(output: str | os.PathLike[str], instance: str = "") -> Path:
    """Make the directory of a new profile of this process."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", instance or socket.gethostname())
    now = time.time_ns()
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(now // 10**9))
    folder = Path(output) / f"{name}_pid_{os.getpid()}" / f"{stamp}_{now // 10**6 % 1000:03}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(session: Session, folder: Path, *, device: bool = True, runtime: bool = True) -> None:
    """Write a profile's files: those of the device, of the runtime, and what else it has."""
    _write(folder / INFO_FILE, "info", [session.info])
    if device:
        cores = sorted({event.core for event in session.events if event.source == "neuron_hw"})
        for core in cores:
            rows = [e for e in session.events if e.source == "neuron_hw" and e.core == core]
            _write(folder / f"profile_nc_{core}_session_0.ntff", "device", rows)
    if runtime:
        rows = [e for e in session.events if e.source != "neuron_hw"]
        _write(folder / RUNTIME_FILE, "runtime", rows)
    for name, samples in ((CPU_FILE, session.cpu), (MEMORY_FILE, session.memory)):
        if samples:
            _write(folder / name, "samples", samples)


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write what cores did to one file."""
    _write(path, "device", events)


def _write(path: Path, content: str, rows: Iterable[Any]) -> None:
    header = {"format": FORMAT, "version": VERSION, "content": content,
              "note": "lines of JSON; not the format that AWS' tools read or write"}  # fmt: skip
    lines = [json.dumps(header), *(json.dumps(row) for row in rows), ""]
    write_whole(path, "\n".join(lines).encode())


def profiles(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the directories of profiles in a directory, itself included, oldest first.

    Raises:
        SessionError: It is no directory.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SessionError(f"{root} is no directory; --session-dir takes one that a profile is in")
    found = {path.parent for path in root.rglob(INFO_FILE)}
    return sorted(found, key=lambda path: (path.name, path))


def predictions(folder: Path) -> list[Path]:
    """Return the directories of tables of predictions in a directory, oldest first."""
    found = folder.rglob(ABOUT_FILE)
    return [path.parent for path in sorted(found, key=lambda p: (p.stat().st_mtime_ns, p))]


def read(folder: Path) -> Session:
    """Read a profile's directory.

    Raises:
        SessionError: A file in it is damaged, or not of this format.
    """
    session = Session(folder=folder)
    session.info = dict(next(_rows(folder / INFO_FILE, Mapping), {}))
    device = [path for path in sorted(folder.iterdir()) if _DEVICE_FILE.fullmatch(path.name)]
    for path in (*device, folder / RUNTIME_FILE):
        if path.exists():
            session.events += read_events(path)
    session.events.sort(key=lambda event: event.start)
    for name, samples in ((CPU_FILE, session.cpu), (MEMORY_FILE, session.memory)):
        if (folder / name).exists():
            samples += [_sample(folder / name, row) for row in _rows(folder / name, list)]
    return session


def read_events(path: Path) -> list[Event]:
    """Read the events of one file.

    Raises:
        SessionError: It is damaged, or not of this format.
    """
    return [_event(path, row) for row in _rows(path, list)]


def _rows(path: Path, kind: type) -> Iterator[Any]:
    try:
        lines = read_regular(path, MOST_BYTES, links=True, anyone=True).splitlines()
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error}") from None
    try:
        rows = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        raise SessionError(
            f"{path} is not of TorchNeuron's format. Files that AWS' tools wrote have one that is "
            "not public; their own neuron-explorer reads them"
        ) from None
    header = rows[0] if rows else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SessionError(f"{path} does not begin as a profile of TorchNeuron does")
    if header.get("version") != VERSION:
        raise SessionError(
            f"{path} has version {header.get('version')!r} of the format; {VERSION} is supported"
        )
    for row in rows[1:]:
        if not isinstance(row, kind):
            raise SessionError(f"{path} has a row that is no {kind.__name__}")
        yield row


def _event(path: Path, row: list[Any]) -> Event:
    kinds = (str, str, int, int, int, int, dict)
    if len(row) != len(kinds) or not all(map(isinstance, row, kinds)) or row[3] < row[2]:
        raise SessionError(f"{path} has a row that is no event")
    return Event(*row)


def _sample(path: Path, row: list[Any]) -> Sample:
    if len(row) != 3 or not all(map(isinstance, row, (int, str, int | float))):
        raise SessionError(f"{path} has a row that is no sample")
    return Sample(*row)
