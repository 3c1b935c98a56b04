"""Rules over the results of many tests, which several processes may have run.

A test notes its part by ``record_property(NEARLY_ALL_LOWERED, [name, status, how many])``. Notes
travel with its report to the process that hears of all tests, which judges when the run ends, if
all parts are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import pytest

NEARLY_ALL_LOWERED: Final = "nearly_all_lowered"
NEARLY_ALL_INSTRUCTIONS: Final = "nearly_all_instructions"


@dataclass(frozen=True)
class Rule:
    """What is demanded of operators together.

    Attributes:
        good: statuses of operators that have what is demanded.
        apart: statuses of operators that are not counted.
        least: the share that has to have it, of 100.
        has: what those have that do; for the summary.
        lacks: what the others have instead.
    """

    good: frozenset[str]
    apart: frozenset[str]
    least: int
    has: str
    lacks: str

    def broken(self, statuses: Mapping[str, str]) -> str:
        """Which operators have not what all but a few have to have, "" if these are few."""
        counted = {name: status for name, status in statuses.items() if status not in self.apart}
        others = sorted(name for name, status in counted.items() if status not in self.good)
        if 100 * (len(counted) - len(others)) >= self.least * len(counted):
            return ""
        return (
            f"{len(others)} of {len(counted)} operators have {self.lacks}, "
            f"at most {100 - self.least} % may: {', '.join(others)}"
        )


RULES: Final[Mapping[str, Rule]] = {
    # Of what eager mode takes; statuses as `tests.compiler.opinfo.Report` has them.
    NEARLY_ALL_LOWERED: Rule(
        frozenset({"ok", "listed", "dynamic"}), frozenset({"eager"}), 95,
        "operators without a step on the host", "a step on the host",
    ),
    # Of what the operator table gives to a NeuronCore.
    NEARLY_ALL_INSTRUCTIONS: Rule(
        frozenset({"ok"}), frozenset({"host"}), 90,
        "operators with instructions of a NeuronCore", "no instructions of a NeuronCore",
    ),
}  # fmt: skip


@dataclass
class _Notes:
    """What was noted for a rule."""

    statuses: dict[str, str] = field(default_factory=dict)
    wanted: int = 0
    verdict: str = "not judged: not all tests that it is about ran"


class Judge:
    """Collects the notes of all tests; a broken rule makes the run fail."""

    def __init__(self) -> None:
        self._notes = {key: _Notes() for key in RULES}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for key, value in report.user_properties:
            if key in self._notes:
                name, status, wanted = cast("tuple[str, str, int]", value)
                notes = self._notes[key]
                notes.statuses[name], notes.wanted = status, wanted

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for key, notes in self._notes.items():
            if not notes.wanted or len(notes.statuses) < notes.wanted:
                continue
            notes.verdict = RULES[key].broken(notes.statuses)
            if notes.verdict:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for key, notes in self._notes.items():
            if notes.wanted:
                terminalreporter.write_line(
                    f"{RULES[key].has}: {notes.verdict or 'enough of them'}",
                    red=bool(notes.verdict),
                )
