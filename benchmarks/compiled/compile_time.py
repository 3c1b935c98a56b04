"""Measure how long compiling takes, each time in a new process.

    python -m benchmarks.compiled.compile_time [--only REGEX] [--list]

Cold means: all caches on disk are empty, ours and Inductor's (which then also looks for a C++
compiler and precompiles headers, as on a machine's first day). Warm means: a process before it has
compiled the same. Three clocks, of which each includes the next: `whole` from before
`torch.compile` until the first result is there; `backend` what Dynamo waited for the backend,
AOTAutograd included; `ours` from where AOTAutograd hands its graph over to the loaded program, and
the same span of Inductor. The small graph is judged by the whole call, though Dynamo and
AOTAutograd are PyTorch's and common to both; the other two ratios are printed without a target. The
fastest sample counts, for each clock on its own.

Exit code: 0 when all targets are met, 1 when one is missed, 2 when the machine was too busy.
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

LAYERS = (12, 24, 48)


@dataclass(frozen=True)
class Run:
    """A first call that is measured: of a case of `child.MAKERS`, by a backend."""

    case: str
    backend: str = child.NEURON
    warm: bool = False


@dataclass(frozen=True)
class Check:
    """A row: a clock of a run in seconds, or divided by that of a rival, or by a number.

    Attributes:
        clock: A field of `child.Seconds`.
        most: The target; None for what is only reported.
    """

    name: str
    clock: str
    run: Run
    most: float | None = None
    rival: Run | None = None
    parts: int = 1


@dataclass(frozen=True)
class Row:
    """Seconds of the run and of its rival, and the value that is compared with the target."""

    name: str
    seconds: float
    rival_seconds: float | None
    value: float
    most: float | None
    met: bool


Times = dict[Run, child.Seconds]


def table() -> list[Check]:
    """All rows in the order of the report."""
    small, inductor = Run("small"), Run("small", child.INDUCTOR)
    gpt2, again = Run("gpt2"), Run("gpt2", warm=True)
    few, *_, most = (Run(f"layers{n}") for n in LAYERS)
    name = "GPT-2 small forward 1x256"
    return [
        Check("small graph cold, ours / Inductor's", "ours", small, None, inductor),
        Check("small graph cold, backend / Inductor's", "backend", small, None, inductor),
        Check("small graph cold, whole / Inductor's", "whole", small, 0.1, inductor),
        Check(f"{name} cold, whole, s", "whole", gpt2, 4),
        Check(f"{name} cold, ours, s", "ours", gpt2, 1.5),
        Check(f"{name} warm, whole, s", "whole", again),
        Check(f"{name} warm, ours, s", "ours", again, 0.3),
        *(
            Check(f"{n} layers cold, ours per layer, s", "ours", Run(f"layers{n}"), parts=n)
            for n in LAYERS
        ),
        Check(f"{LAYERS[-1]} / {LAYERS[0]} layers cold, ours", "ours", most, 4.5, few),
    ]


def row(check: Check, times: Times) -> Row:
    """The row of a check whose runs have been measured."""
    seconds = float(getattr(times[check.run], check.clock))
    rival = None if check.rival is None else float(getattr(times[check.rival], check.clock))
    value = seconds / (check.parts if rival is None else rival)
    met = check.most is None or value <= check.most
    return Row(check.name, seconds, rival, value, check.most, met)


def runs(checks: Sequence[Check]) -> list[Run]:
    """What must be measured for them, each once."""
    wanted = (run for c in checks for run in (c.run, c.rival) if run is not None)
    return list(dict.fromkeys(wanted))


def measure(wanted: Sequence[Run], options: argparse.Namespace) -> Times:
    """The fastest of all samples, which are taken in turn."""
    samples: dict[Run, list[child.Seconds]] = {run: [] for run in wanted}
    # A warm run needs the directory that a cold one has filled.
    cold = dict.fromkeys((run.case, run.backend) for run in wanted)
    for _ in range(options.repeats):
        for case, backend in cold:
            with tempfile.TemporaryDirectory(prefix="compile-time-") as folder:
                for warm in (False, True):
                    if warm and Run(case, backend, warm) not in samples:
                        continue
                    found = child.sample(Path(folder), "compile", case, backend, options.threads)
                    samples.setdefault(Run(case, backend, warm), []).append(child.Seconds(**found))
    return {run: _fastest(samples[run]) for run in wanted}


def _fastest(samples: Sequence[child.Seconds]) -> child.Seconds:
    return child.Seconds(
        whole=min(s.whole for s in samples),
        backend=min(s.backend for s in samples),
        ours=min(s.ours for s in samples),
    )


HEADER = f"{'first call, each in a new process':40} {'s':>8} {'rival s':>8} {'value':>8} target"


def line(row: Row) -> str:
    rival = "-" if row.rival_seconds is None else f"{row.rival_seconds:.3f}"
    target = "-" if row.most is None else f"<= {row.most:g}"
    return f"{row.name:40} {row.seconds:8.3f} {rival:>8} {row.value:8.4f} {target}"


def run(checks: Sequence[Check], options: argparse.Namespace, watch: quiet.Watch) -> int:
    times = measure(runs(checks), options)
    return suite.tell(HEADER, (row(check, times) for check in checks), line, options, watch)


def main() -> int:
    return suite.main(quiet.parser(__doc__, repeats=3), table(), run)


if __name__ == "__main__":
    sys.exit(main())
