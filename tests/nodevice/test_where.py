"""For every source file one can name its tests, and every test says what it is a test of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.where import EVERYWHERE, ROOT, SOURCES, TESTS, files_with_tests, matching, row_of


def sources() -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for package in SOURCES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".pyi", ".cpp", ".h"}
    ]


def test_every_directory_of_sources_has_tests_of_its_own() -> None:
    """A package's own line is for the files in it, not for what lies in directories below."""
    homeless = set()
    for source in sources():
        row = row_of(source)
        if row is None or (row in SOURCES and source.count("/") > 1):
            homeless.add(source.rpartition("/")[0])
    # Names of the vendor's that kernels import, one line each.
    assert homeless == {"nki/compiler"}


def test_every_file_with_tests_is_of_something() -> None:
    known = matching((*EVERYWHERE, *(pattern for row in TESTS.values() for pattern in row)))
    assert [name for name in files_with_tests() if name not in known] == []


@pytest.mark.parametrize("source", TESTS)
def test_a_line_is_true(source: str) -> None:
    assert (ROOT / source).exists()
    for pattern in TESTS[source]:
        assert matching((pattern,)), pattern


def test_the_command() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.where", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run("nki/lint/rules.py").stdout == "tests/nki/test_lint.py\n"
    refused = run("README.md")
    assert refused.returncode == 1
    assert refused.stderr.startswith("README.md is no source file of neuronxcc, nki")
