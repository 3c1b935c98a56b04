"""What is demanded of many tests together is demanded, and is told from a run of a few of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.judged import NEARLY_ALL_INSTRUCTIONS, NEARLY_ALL_LOWERED, RULES


def test_nineteen_in_twenty() -> None:
    broken = RULES[NEARLY_ALL_LOWERED].broken
    statuses = {str(n): "ok" for n in range(19)} | {"refused": "eager", "odd": "host"}
    assert not broken(statuses)
    assert broken(statuses | {"0": "wrong"}) == (
        "2 of 20 operators have a step on the host, at most 5 % may: 0, odd"
    )


def test_nine_in_ten() -> None:
    """What the table leaves to the host is not counted."""
    broken = RULES[NEARLY_ALL_INSTRUCTIONS].broken
    statuses = {str(n): "ok" for n in range(9)} | {"svd": "host", "odd": "missing"}
    assert not broken(statuses)
    assert broken(statuses | {"0": "missing"}) == (
        "2 of 10 operators have no instructions of a NeuronCore, at most 10 % may: 0, odd"
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
        record_property({key!r}, [name, status, 4])
"""
OF_RULE = {
    NEARLY_ALL_LOWERED: ("host", "a step on the host, at most 5 %", "without a step on the host"),
    NEARLY_ALL_INSTRUCTIONS: (
        "missing", "no instructions of a NeuronCore, at most 10 %",
        "with instructions of a NeuronCore",
    ),
}  # fmt: skip


@pytest.mark.every(3, "slow")
@pytest.mark.parametrize("key", RULES)
@pytest.mark.parametrize(
    ("workers", "good", "left_out", "code", "text"),
    [
        (2, False, "none", 1, "1 of 4 operators have {lacks} may: b"),
        (0, False, "none", 1, "1 of 4 operators have {lacks} may: b"),
        (0, True, "none", 0, "{has}: enough of them"),
        (0, False, "test_notes.py::test_operators[c]", 0, "not judged: not all tests that it is"),
    ],
)
def test_a_run_is_judged_by_all_its_workers(
    tmp_path: Path, workers: int, left_out: str, code: int, text: str, key: str, *, good: bool
) -> None:
    bad, lacks, has = OF_RULE[key]
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    notes = textwrap.dedent(NOTES).replace("{status!r}", repr("ok" if good else bad))
    (tmp_path / "test_notes.py").write_text(notes.replace("{key!r}", repr(key)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(workers), "-c", "/dev/null",
         "--rootdir", str(tmp_path), "--deselect", left_out, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert text.format(lacks=lacks, has=has) in done.stdout
