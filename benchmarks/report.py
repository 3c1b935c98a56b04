"""The table on the terminal and the JSON file of one benchmark run."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torch_neuronx import _C

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _typeshed import DataclassInstance

    from benchmarks.harness import Timing, Workload
    from benchmarks.memory import Memory

RESULTS = Path(__file__).parent / "results"
HEADER = ("workload", "cpu ms", "neuron ms", "ratio", "target", "met")


@dataclass(frozen=True)
class Row:
    """One line: the ratio is cpu time / neuron time, or for memory what its name says."""

    workload: str
    cpu_ms: float | None
    neuron_ms: float | None
    ratio: float
    target: str
    met: bool

    def cells(self) -> tuple[str, ...]:
        return (
            self.workload,
            "" if self.cpu_ms is None else f"{self.cpu_ms:.4g}",
            "" if self.neuron_ms is None else f"{self.neuron_ms:.4g}",
            f"{self.ratio:.2f}",
            self.target,
            "yes" if self.met else "NO",
        )


def timing_row(workload: Workload, timing: Timing) -> Row:
    """The row of a timed workload."""
    target = workload.target
    met = timing.speedup >= target.speedup
    return Row(workload.name, timing.cpu_ms, timing.neuron_ms, timing.speedup, target.text, met)


def memory_row(memory: Memory, largest: float) -> Row:
    """The row of the memory run; it is met only when all memory was given back, too."""
    name = f"reserved / peak allocated, {memory.steps} steps"
    return Row(name, None, None, memory.overhead, f"<= {largest:g}, then 0", memory.met)


def table(rows: Iterable[Row]) -> str:
    """The rows under their header, numbers aligned to the right."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 4, 5}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def machine() -> dict[str, object]:
    """Where the numbers were read: they hold for this machine only."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": _C.kernel_isa(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "emulates": torch.get_device_module("neuron").get_device_name(0),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def write(
    rows: Sequence[DataclassInstance], facts: dict[str, object], folder: Path = RESULTS
) -> Path:
    """Write the run as JSON under a name made of its date; returns the path.

    The file appears under its name only when it is whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{stamp}.json"
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(
        json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
    )
    partial.replace(path)
    return path
