"""`make ... TORCH=2.15` works in a tree of its own, with that release everywhere."""

import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# `make help` lists them by the same sign. What these do is the same with every release.
SAME = {"help", "format", "clean"}
COMMANDS = sorted(set(re.findall(r"^([a-z-]+):.*## ", text("Makefile"), re.MULTILINE)) - SAME)


def dry_run(*words: str) -> subprocess.CompletedProcess[str]:
    """What make would run; in the other tree too, if there is one."""
    kept = {name: said for name, said in os.environ.items() if not name.startswith(("MAKE", "MFL"))}
    return subprocess.run(
        [str(MAKE), "--dry-run", *words],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("minor", "release"), [("2.14", "2.14.1"), ("2.15", "2.15.0")])
@pytest.mark.parametrize("target", COMMANDS)
def test_commands(target: str, minor: str, release: str) -> None:
    said = dry_run(target, f"TORCH={minor}").stdout
    assert f"sed 's/^torch==.*/torch=={release}/' constraints.txt" in said
    assert re.search(
        rf"make\S* -C build/torch-{minor} {target} TORCH= TORCH_RELEASE={release}", said
    )


@pytest.mark.parametrize("target", sorted(SAME))
def test_what_no_release_changes(target: str) -> None:
    said = dry_run(target, "TORCH=2.14").stdout
    assert said == dry_run(target).stdout
    assert "Nothing to be done" not in said


def test_the_default_needs_no_tree() -> None:
    assert "build/torch-" not in dry_run("check").stdout


def test_an_unknown_release() -> None:
    done = dry_run("check", "TORCH=2.12")
    assert done.returncode == 2
    assert "TORCH=2.12 is not supported; 2.13, 2.14 and 2.15 are" in done.stderr


def test_one_list_of_releases() -> None:
    """The Makefile's and CMake's are the same, and begin with the one that a build asks for.

    The constraints name the one that is installed, which in a tree of another release is its own.
    """
    made = re.findall(r"\d+\.\d+\.\d+", re.findall(r"filter \$\(TORCH\).*", text("Makefile"))[0])
    (minors,) = re.findall(r"\^2\\\\\.\(([0-9|]+)\)", text("CMakeLists.txt"))
    assert [release.split(".")[1] for release in made] == minors.split("|")
    assert f"\nTORCH_RELEASE ?= {made[0]}\n" in text("Makefile")
    installed = version("torch").split("+")[0]
    assert installed in made
    assert f"\ntorch=={installed}\n" in text("constraints.txt")
    assert f'"torch=={made[0]}"' in text("pyproject.toml")
    assert f'_DEFAULT = "{made[0]}"' in text("cmake/torch_release.py")
