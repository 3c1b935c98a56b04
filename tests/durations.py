"""Which tests take the time: `--durations-file` keeps it, `python -m tests.durations` prints it.

A test's seconds are those on the clock and those of the processors, its own and of its child
processes. The latter hardly change with what else the machine does, so runs are compared
by them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

Seconds = Mapping[str, tuple[float, float]]


def _if_there(file: Path) -> str:
    """A file's text; "" if the thread or process that it tells of has ended meanwhile."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _processor() -> float:
    """Seconds of the processors that this process has used, and its children and theirs."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        for child in _if_there(task / "children").split():
            # A server of processes lives on, with what those have used that it has waited for.
            after_name = _if_there(Path(f"/proc/{child}/stat")).rpartition(")")[2].split()
            ticks += sum(map(int, after_name[11:15]))
    return sum(use.ru_utime + use.ru_stime for use in uses) + ticks / os.sysconf("SC_CLK_TCK")


class Measured:
    """In the process that runs tests: puts the seconds of the processors into reports."""

    _before = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._before = _processor()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = _processor()
        report.processor = now - self._before  # xdist sends what a report has to the controller
        self._before = now
        return report


class Kept:
    """In the process that hears of all tests: writes their seconds to a file at the end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began = time.monotonic()
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self._seconds[report.nodeid]
        seconds[0] += report.duration
        seconds[1] += getattr(report, "processor", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        rounded = {name: [round(s, 3) for s in both] for name, both in self._seconds.items()}
        slowest_first = dict(sorted(rounded.items(), key=lambda item: -item[1][1]))
        self._file.write_text(json.dumps(slowest_first, indent=0) + "\n")
        terminalreporter.write_line(
            f"{time.monotonic() - self._began:.0f} s, of tests (seconds on the clock, of the "
            f"processors) in {self._file}; `python -m tests.durations` prints the slowest"
        )


# What tests are summed by: the part of their names before this.
GROUPS = {"file": "::", "function": "[", "test": "\n"}


def _grouped(seconds: Seconds, end: str) -> Seconds:
    sums: dict[str, tuple[float, float]] = {}
    for test, (clock, processor) in seconds.items():
        name = test.partition(end)[0]
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + clock, before[1] + processor)
    return sums


def main() -> None:
    """Print the slowest files, functions or tests of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="build/durations.json", type=Path)
    parser.add_argument("--by", choices=GROUPS, default="file")
    parser.add_argument("--count", type=int, default=40, help="how many are printed")
    options = parser.parse_args()
    seconds: Seconds = {test: tuple(s) for test, s in json.loads(options.file.read_text()).items()}
    grouped = _grouped(seconds, GROUPS[options.by])
    slowest = sorted(grouped.items(), key=lambda item: -item[1][1])
    print("  clock processors")  # noqa: T201
    for name, (clock, processor) in slowest[: options.count]:
        print(f"{clock:7.1f} {processor:10.1f}  {name}")  # noqa: T201
    totals = [sum(s[i] for s in seconds.values()) for i in (0, 1)]
    print(f"{totals[0]:7.1f} {totals[1]:10.1f}  all {len(seconds)} tests")  # noqa: T201


if __name__ == "__main__":
    main()
