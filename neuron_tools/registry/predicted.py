"""Predicted times of a process, in a file beside the one that it keeps: `<its name>.model`.

A process that runs with TORCH_NEURONX_CLOCK=model adds for every call of a program or an operator,
and for every collective, what a NeuronCore is predicted to take. The file is a header and, for each
core of the process, a sum of nanoseconds, how many executions they are of, how many there were
without a prediction, and a histogram of latencies in buckets. Numbers are 64 bits in the order of
this processor. The device asks here too, so this imports nothing else of the tools.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_tools.registry.buckets import BUCKETS, bucket
from neuronxcc.files import read_regular

_MAGIC: Final = int.from_bytes(b"NEURONPT", "little")
_VERSION: Final = 2
_HEADER = struct.Struct("=QQQ")  # magic, version, cores
_CORE = struct.Struct(f"={3 + BUCKETS}Q")
_FIRST, _EACH = _HEADER.size // 8, _CORE.size // 8  # in numbers
_NS, _EXECUTIONS, _UNPREDICTED, _LATENCIES = range(4)  # places in it
_MOST_CORES = 64


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the programs of a core were predicted to take.

    Attributes:
        ns: Nanoseconds of all executions.
        executions: How many.
        unpredicted: How many there were besides, of programs without a prediction.
        latencies: Histogram of them, in nanoseconds.
    """

    ns: int
    executions: int
    unpredicted: int
    latencies: tuple[int, ...]


NOTHING: Final = Predicted(0, 0, 0, (0,) * BUCKETS)


def beside(path: Path) -> Path:
    """Where the file is that belongs to a process' own."""
    return path.with_name(f"{path.name}.model")


def read(path: Path) -> tuple[Predicted, ...] | None:
    """Read the file beside a process' own; None if there is none that can be believed."""
    try:
        content = read_regular(beside(path), _HEADER.size + _MOST_CORES * _CORE.size)
    except OSError:
        return None
    if len(content) < _HEADER.size:
        return None
    magic, version, cores = _HEADER.unpack_from(content)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    if len(content) != _HEADER.size + cores * _CORE.size:
        return None
    rows = (_CORE.unpack_from(content, _HEADER.size + n * _CORE.size) for n in range(cores))
    return tuple(
        Predicted(ns, executions, unpredicted, tuple(counts))
        for ns, executions, unpredicted, *counts in rows
    )


class Keeper:
    """The file of this process; the native core adds to its `numbers`.

    Args:
        path: Of the process' own file.
        cores: How many it has.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, path: Path, cores: int) -> None:
        self.path = beside(path)
        hidden = path.with_name(f".{self.path.name}")
        hidden.unlink(missing_ok=True)  # of the program that this process ran before this one
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(hidden, flags, 0o600)
        try:
            size = _HEADER.size + cores * _CORE.size
            os.posix_fallocate(descriptor, 0, size)
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        _HEADER.pack_into(memory, 0, _MAGIC, _VERSION, cores)
        self.numbers = memoryview(memory).cast("Q")
        hidden.rename(self.path)

    #: Places in `numbers` of core 0, and how far behind them those of the next core are.
    executions: Final = _FIRST + _EXECUTIONS
    unpredicted: Final = _FIRST + _UNPREDICTED
    stride: Final = _EACH

    def places(self, core: int, ns: int | None) -> list[tuple[int, int]]:
        """Return what an execution on a core of so many nanoseconds adds to, in `numbers`.

        None is an execution of a program that has no prediction.
        """
        shift = core * _EACH
        if ns is None:
            return [(shift + self.unpredicted, 1)]
        times = [(shift + place, amount) for place, amount in self.times(ns)]
        return [*times, (shift + self.executions, 1)]

    @staticmethod
    def times(ns: int, *, latency: bool = True) -> list[tuple[int, int]]:
        """Return what so many nanoseconds on core 0 add to, beside the number of executions.

        What takes no time (a view, a copy to the host) runs on no NeuronCore, so it has no latency.

        Args:
            ns: nanoseconds.
            latency: it is the latency of an execution; that of a collective is none.
        """
        if not ns:
            return []
        place = _FIRST + _LATENCIES + bucket(ns)
        return [(_FIRST + _NS, ns), *([(place, 1)] if latency else [])]

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
