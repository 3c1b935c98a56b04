"""Measure `neuronx-cc`: seconds from the start of the process to its end.

    python -m benchmarks.compiled.command [--only REGEX] [--list]

Every sample is a new process; Python's bytecode files are kept, as in an installation. The models
are JAX's (GPT-2 small, a large product, a large argmax), and graphs of up to 20,000 operators in
four forms, of which the growth is read: the time for 20,000 over that for 5000, both without the
time of an empty module. In proportion would be 4. The fastest sample counts.

Exit code: 0 when all targets are met, 1 when one is missed, 2 when the machine was too busy.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import quiet, suite
from benchmarks.compiled import hlo_models

if TYPE_CHECKING:
    import argparse

FEW, SOME, MANY = 5_000, 10_000, 20_000
GROWTH = 4.8  # a fifth more than in proportion
_NOTHING = partial(hlo_models.operators, "chain", 2)


@dataclass(frozen=True)
class Check:
    """A row.

    Attributes:
        name: For people.
        make: Gives the model file; None: `words` alone are the command.
        words: Of the command.
        most: The target in seconds, or as a ratio; None for what is only reported.
        rival: A model file that the time is compared with; both without the time of `_NOTHING`.
    """

    name: str
    make: Callable[[], bytes] | None
    most: float | None = None
    words: tuple[str, ...] = ("compile", "--target", "trn2")
    rival: Callable[[], bytes] | None = None


@dataclass(frozen=True)
class Row:
    """Seconds, and the value that is compared with the target."""

    name: str
    seconds: float
    value: float
    most: float | None
    met: bool


@functools.cache
def _graph(form: str, count: int) -> Callable[[], bytes]:
    return partial(hlo_models.operators, form, count)


def table() -> list[Check]:
    """All rows in the order of the report."""
    rows = [
        Check("neuronx-cc --version", None, 0.5, ("--version",)),
        Check("neuronx-cc list-operators", None, 0.5, ("list-operators", "--framework", "XLA")),
        Check("two operators", _NOTHING, 1),
        Check("GPT-2 small 1x128, weights are parameters", hlo_models.gpt2, 3),
        Check("GPT-2 small 1x128, weights in the file", hlo_models.gpt2_constants),
        Check("matmul 16384x16384", hlo_models.matmul, 1),
        Check("argmax over 131072", hlo_models.argmax, 1),
    ]
    for form in hlo_models.FORMS:
        few, many = _graph(form, FEW), _graph(form, MANY)
        rows += [
            Check(f"{form}, {FEW} operators", few),
            Check(f"{form}, {SOME} operators", _graph(form, SOME)),
            Check(f"{form}, {MANY} operators", many),
            Check(f"{form}, {MANY} / {FEW} operators", many, GROWTH, rival=few),
        ]
    return rows


class Timer:
    """Seconds of commands, each measured once, in a folder of its own."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self._folder, self._repeats = folder, repeats
        self._known: dict[object, float] = {}
        self._environment = {
            **os.environ,
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "TORCH_NEURONX_PROGRESS": "0",
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds(self, make: Callable[[], bytes] | None, words: tuple[str, ...]) -> float:
        """The fastest of the samples."""
        key = (make, words)
        if key not in self._known:
            if not self._known:
                self._known[()] = self._sample(words if make is None else ("--version",))
            command = words
            if make is not None:
                (self._folder / "model.pb").write_bytes(make())
                command = (*words, "model.pb", "--output", "model.neff")
                self._sample(command)  # the bytecode of what it imports is written
            self._known[key] = min(self._sample(command) for _ in range(self._repeats))
        return self._known[key]

    def _sample(self, words: Sequence[str]) -> float:
        command = [sys.executable, "-m", "neuronxcc", *words]
        start = time.perf_counter()
        subprocess.run(  # noqa: S603 - our own module
            command, check=True, cwd=self._folder, env=self._environment, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - start


def row(check: Check, timer: Timer) -> Row:
    """Measure a row."""
    seconds = value = timer.seconds(check.make, check.words)
    if check.rival is not None:
        start = timer.seconds(_NOTHING, check.words)
        value = (seconds - start) / (timer.seconds(check.rival, check.words) - start)
    return Row(check.name, seconds, value, check.most, check.most is None or value <= check.most)


HEADER = f"{'each in a new process':44} {'s':>8} {'value':>8} target"


def line(row: Row) -> str:
    target = "" if row.most is None else f"<= {row.most:g}"
    return f"{row.name:44} {row.seconds:8.3f} {row.value:8.3f} {target}"


def run(checks: list[Check], options: argparse.Namespace, watch: quiet.Watch) -> int:
    """Measure and print as it goes."""
    with tempfile.TemporaryDirectory(prefix="neuronx-cc-") as folder:
        timer = Timer(Path(folder), options.repeats)

        def rows() -> Iterator[Row]:
            return (row(check, timer) for check in checks)

        return suite.tell(HEADER, rows(), line, options, watch)


if __name__ == "__main__":
    sys.exit(suite.main(quiet.parser(__doc__, repeats=3), table(), run))
