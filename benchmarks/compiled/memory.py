"""Measure the device memory of a training step, compiled against eager, each in a new process.

    python -m benchmarks.compiled.memory [--only REGEX] [--list]

The peak is the most that was allocated at once during one step after a warm-up: parameters,
gradients, the optimizer's state, and what the step itself needs. It doesn't depend on how busy the
machine is, and every sample gives the same, so one is enough. Exit code: 0 when the target is met,
1 when it is missed, 2 when the machine was too busy.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import quiet, suite
from benchmarks.compiled import child

if TYPE_CHECKING:
    import argparse

MIB = 2**20


@dataclass(frozen=True)
class Check:
    """A case of `child.MAKERS`, and the most that compiled may need of eager's peak."""

    name: str
    case: str
    most: float


@dataclass(frozen=True)
class Row:
    """Bytes at the peak of a step and between steps."""

    name: str
    eager_peak: int
    compiled_peak: int
    before: int
    ratio: float
    most: float
    met: bool


def table() -> list[Check]:
    """All rows in the order of the report."""
    return [Check("training step 8x256 f32, peak memory", "training", 0.8)]


def measure(check: Check, options: argparse.Namespace) -> Row:
    """The largest of the samples counts on each side."""
    peaks: dict[str, child.Peak] = {}
    with tempfile.TemporaryDirectory(prefix="step-memory-") as folder:
        for backend in (child.EAGER, child.NEURON):
            samples = [
                child.Peak(
                    **child.sample(Path(folder), "memory", check.case, backend, options.threads)
                )
                for _ in range(options.repeats)
            ]
            peaks[backend] = max(samples, key=lambda sample: sample.peak)
    eager, ours = peaks[child.EAGER], peaks[child.NEURON]
    ratio = ours.peak / eager.peak
    met = ratio <= check.most
    return Row(check.name, eager.peak, ours.peak, ours.before, ratio, check.most, met)


HEADER = (
    f"{'MiB, compiled / eager':40} {'between':>8} {'eager':>8} {'compiled':>8} {'ratio':>6} target"
)


def line(row: Row) -> str:
    amounts = (row.before, row.eager_peak, row.compiled_peak)
    text = " ".join(f"{amount / MIB:8.1f}" for amount in amounts)
    return f"{row.name:40} {text} {row.ratio:6.3f} <= {row.most:g}"


def run(checks: Sequence[Check], options: argparse.Namespace, watch: quiet.Watch) -> int:
    rows = (measure(check, options) for check in checks)
    return suite.tell(HEADER, rows, line, options, watch)


def main() -> int:
    return suite.main(quiet.parser(__doc__, repeats=1), table(), run)


if __name__ == "__main__":
    sys.exit(main())
