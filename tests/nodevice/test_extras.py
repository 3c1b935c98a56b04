"""What errors and pages say about installing."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from neuronxcc import extras

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["diffusers", "s3", "stablehlo"])
def test_the_command_names_what_is_declared(extra: str) -> None:
    command = extras.install_command(extra)
    assert command.startswith("pip install '")
    named = shlex.split(command.removeprefix("pip install "))
    assert [re.split("[=<>]", p)[0] for p in named] == [
        re.split("[=<>]", p)[0] for p in DECLARED[extra]
    ]


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", absent)
    assert extras.install_command("s3") == "pip install '.[s3]', in TorchNeuron's folder"


def test_no_page_installs_torchneuron_from_an_index() -> None:
    """It is on none. Extras that pages name are declared."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = [c for page in pages for c in re.findall(r"pip install [^`\n]*", page.read_text())]
    assert commands
    assert not [c for c in commands if re.search(r"install '?torchneuron", c)]
    assert {e for c in commands for e in re.findall(r"\.\[(\w+)\]", c)} <= set(DECLARED)
