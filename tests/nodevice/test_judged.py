"""What is demanded of many tests together is demanded, and is told from a run of a few of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.judged import not_lowered_enough


def test_nineteen_in_twenty() -> None:
    statuses = {str(n): "ok" for n in range(19)} | {"refused": "eager", "odd": "host"}
    assert not not_lowered_enough(statuses)
    assert not_lowered_enough(statuses | {"0": "wrong"}) == (
        "2 of 20 operators have a step on the host, at most 5 % may: 0, odd"
    )


CONFTEST = """
    from tests.judged import Judge

    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Judge())
"""
NOTES = """
    import pytest
    @pytest.mark.parametrize("name", "abcd")
    def test_operators(name, record_property):
        status = {status!r} if name == "b" else "ok"
        record_property("nearly_all_lowered", [name, status, 4])
"""


@pytest.mark.parametrize(
    ("workers", "status", "left_out", "code", "text"),
    [
        (2, "host", "none", 1, "1 of 4 operators have a step on the host, at most 5 % may: b"),
        (0, "host", "none", 1, "1 of 4 operators have a step on the host, at most 5 % may: b"),
        (0, "ok", "none", 0, "without a step on the host: enough of them"),
        (0, "host", "test_notes.py::test_operators[c]", 0, "not judged: not all tests that it is"),
    ],
)
def test_a_run_is_judged_by_all_its_workers(
    tmp_path: Path, workers: int, status: str, left_out: str, code: int, text: str
) -> None:
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (tmp_path / "test_notes.py").write_text(
        textwrap.dedent(NOTES).replace("{status!r}", repr(status))
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(workers), "-c", "/dev/null",
         "--rootdir", str(tmp_path), "--deselect", left_out, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout
