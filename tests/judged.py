"""Rules over the results of many tests, which several processes may have run.

A test notes its part by ``record_property(NEARLY_ALL_LOWERED, [name, status, how many])``. Notes
travel with its report to the process that hears of all tests, which judges when the run ends, if
all parts are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

NEARLY_ALL_LOWERED = "nearly_all_lowered"
LOWERED = {"ok", "listed", "dynamic"}


def not_lowered_enough(statuses: Mapping[str, str]) -> str:
    """At least 95 in 100 of what eager mode takes are lowered, or this says which are not.

    Args:
        statuses: of operators, as `tests.compiler.opinfo.Report` has them.
    """
    passing = {name: status for name, status in statuses.items() if status != "eager"}
    others = sorted(name for name, status in passing.items() if status not in LOWERED)
    if len(passing) - len(others) >= 0.95 * len(passing):
        return ""
    return (
        f"{len(others)} of {len(passing)} operators have a step on the host, "
        f"at most 5 % may: {', '.join(others)}"
    )


class Judge:
    """Collects the notes of all tests; a broken rule makes the run fail."""

    def __init__(self) -> None:
        self._statuses: dict[str, str] = {}
        self._wanted = 0
        self._verdict = "not judged: not all tests that it is about ran"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for key, value in report.user_properties:
            if key == NEARLY_ALL_LOWERED:
                name, status, wanted = cast("tuple[str, str, int]", value)
                self._statuses[name], self._wanted = status, wanted

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._wanted or len(self._statuses) < self._wanted:
            return
        self._verdict = not_lowered_enough(self._statuses)
        if self._verdict:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._wanted:
            terminalreporter.write_line(
                f"operators without a step on the host: {self._verdict or 'enough of them'}",
                red=bool(self._verdict),
            )
