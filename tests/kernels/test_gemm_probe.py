"""The probe's decisions and their file: shared, only added to, never trusted when damaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import interpreter

MODULE = os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")

# Decides for some shapes; prints the file, what is decided and by which agreement.
SCRIPT = """
import importlib, json, sys, torch
core = importlib.import_module({module!r})
torch.set_num_threads(2)
for m, n, k in json.loads(sys.argv[1]):
    a, b, out = torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)
    core.gemm_run(a, b, out)
agreement = core.gemm_probe_agreement()
print(json.dumps([core.gemm_probe_path(), core.gemm_probe_report(), agreement]))
"""

Report = list[dict[str, object]]


def decide(
    cache: Path, shapes: list[tuple[int, int, int]], **environment: str
) -> tuple[Path, Report]:
    """Run the script with its cache in `cache`; the file's path and what was decided."""
    done = interpreter.run(
        ["-c", SCRIPT.format(module=MODULE), json.dumps(shapes)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
    )
    assert done.returncode == 0, done.stderr
    path, report, agreement = json.loads(done.stdout)
    # Nothing is measured that could not count.
    assert agreement != "rule" or not any(row["ours_us"] for row in report)
    return Path(path), report


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    cache = tmp_path_factory.mktemp("decided")
    return cache, decide(cache, [(8, 64, 64)])[1]


@pytest.fixture
def probed(tmp_path: Path, decided: tuple[Path, Report]) -> tuple[Path, Report]:
    """A copy of the file that the first process wrote, and what it had decided."""
    cache, report = decided
    if not report:
        pytest.skip("this processor has no matrix micro-kernels")
    folder = shutil.copytree(cache / "torchneuron", tmp_path / "torchneuron")
    (path,) = folder.iterdir()
    return path, report


def measured(report: Report) -> bool:
    """Whether somebody has measured it all, and nothing is left to the rule."""
    return all(row["ours_us"] for row in report)


def test_the_file_is_private_and_in_the_cache_directory(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    path, report = probed
    assert path.parent == tmp_path / "torchneuron"
    assert re.fullmatch(r"gemm_probe-[0-9a-f]{16}\.txt", path.name)
    assert len(report) == 1
    assert measured(report)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_decisions_are_read_and_not_measured_again(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    path, report = probed
    before = path.read_bytes()
    assert decide(tmp_path, [(8, 64, 64)]) == (path, report)
    assert path.read_bytes() == before


def test_new_classes_are_added_to_the_file(tmp_path: Path, probed: tuple[Path, Report]) -> None:
    path, first = probed
    before = path.read_bytes()
    _, both = decide(tmp_path, [(30, 40, 50)])
    assert len(both) == 2
    assert first[0] in both
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 2


def test_home_is_used_without_xdg(tmp_path: Path) -> None:
    path, _ = decide(Path("relative-is-invalid"), [(8, 64, 64)], HOME=str(tmp_path))
    assert path.parent == tmp_path / ".cache" / "torchneuron"


def other_method(text: str) -> str:
    """The decision changed, but not its checksum."""
    method = text.split()[10]
    return text.replace(method, "dot" if method == "panel" else "panel")


def other_checksum(text: str) -> str:
    return "0" * 16 + text[16:]


def other_times(text: str) -> str:
    return text.rstrip("\n") + "1\n"


def cut_short(text: str) -> str:
    return text[: len(text) * 2 // 3]


def without_end(text: str) -> str:
    """As a full disk may leave it: whole, but for the end of the line."""
    return text.rstrip("\n")


def empty(text: str) -> str:
    return text[:0]


def binary(text: str) -> str:
    return "\0\1" * len(text)


def without_space(text: str) -> str:
    return text.replace(" ", "")


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "damage",
    [
        other_checksum, cut_short,
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in (other_method, other_times, without_end, empty, binary, without_space)
        ),
    ],
)  # fmt: skip
def test_a_damaged_line_is_ignored_and_kept(
    tmp_path: Path, probed: tuple[Path, Report], damage: Callable[[str], str]
) -> None:
    """Others may have read the file: what is written in it never changes."""
    path, _ = probed
    good = path.read_text()
    damaged = damage(good)
    assert damaged != good
    path.write_text(damaged)
    _, report = decide(tmp_path, [(8, 64, 64)])
    assert len(report) == 1
    assert measured(report)
    text = path.read_text()
    assert text.startswith(damaged)
    assert decide(tmp_path, [(8, 64, 64)])[1] == report
    assert path.read_text() == text


def test_the_first_line_about_a_class_counts(tmp_path: Path, probed: tuple[Path, Report]) -> None:
    path, report = probed
    first = path.read_text()
    path.unlink()
    decide(tmp_path, [(8, 64, 64)])
    second = path.read_text()
    path.write_text(first + second)
    assert decide(tmp_path, [(8, 64, 64)])[1] == report


def test_sizes_on_both_sides_of_a_limit_are_two_classes(tmp_path: Path) -> None:
    """The dot method takes 16 rows; 20 are in the same bucket, but not for it to decide."""
    _, one = decide(tmp_path, [(16, 16, 2)])
    _, both = decide(tmp_path, [(20, 20, 2), (16, 16, 2)])
    assert len(both) == 2 * len(one)
    assert all(row in both for row in one)


# What two processes do that know each other's file from the start: one after the other.
DUEL = """
import importlib, sys, torch
core = importlib.import_module({module!r})
a, b, out = torch.rand(8, 64), torch.rand(64, 64), torch.empty(8, 64)
core.gemm_method(torch.rand(30, 50), torch.rand(50, 40), torch.empty(30, 40))
print("ready", flush=True)
sys.stdin.readline()
print(core.gemm_probe_propose(a, b, out, sys.argv[1]), core.gemm_method(a, b, out), flush=True)
"""


@pytest.mark.slow
def test_two_processes_that_measure_differently_take_one_method(tmp_path: Path) -> None:
    core = pytest.importorskip(MODULE)
    if core.gemm_kernels()["Float"] == "none":
        pytest.skip("this processor has no matrix micro-kernels")
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", DUEL.format(module=MODULE), method],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for method in ("panel", "aten")
    ]
    try:
        for rival in rivals:
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
        said = [rival.communicate("go\n")[0] for rival in rivals]
    finally:
        for rival in rivals:
            rival.kill()
    assert said == ["panel panel\n"] * 2


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


def link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sparse(path: Path) -> None:
    """Full: no more than 4 MiB are read or written."""
    os.truncate(path, 100 << 30)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.every(2)
@pytest.mark.parametrize("hostile", [writable_by_others, link, pipe, sparse, endless])
def test_what_is_no_such_file_is_left_alone(
    tmp_path: Path, probed: tuple[Path, Report], hostile: Callable[[Path], None]
) -> None:
    path, _ = probed
    hostile(path)
    before = path.lstat()
    _, report = decide(tmp_path, [(30, 40, 50)])
    new = [row for row in report if row["m"] != probed[1][0]["m"]]
    assert len(new) == 1
    assert not measured(new)
    after = path.lstat()
    assert (after.st_mode, after.st_size, after.st_ino) == (
        before.st_mode, before.st_size, before.st_ino
    )  # fmt: skip


def test_a_directory_of_others_is_not_written_to(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    """Somebody has made it again after it was deleted."""
    path, _ = probed
    path.unlink()
    path.parent.chmod(0o777)
    decide(tmp_path, [(8, 64, 64)])
    assert not list(path.parent.iterdir())


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    path, report = decide(blocked, [(8, 64, 64)])
    assert not path.exists()
    assert not any(row["ours_us"] for row in report), "the fixed rule, and no measurement"


def test_without_the_probe_nothing_is_measured_or_written(tmp_path: Path) -> None:
    path, report = decide(tmp_path, [(8, 64, 64)], TORCH_NEURONX_GEMM_PROBE="0")
    assert report == []
    assert not path.exists()


@pytest.mark.parametrize("name", ["PROBE", "KERNELS"])
def test_a_wrong_setting_is_explained(tmp_path: Path, name: str) -> None:
    variable = f"TORCH_NEURONX_GEMM_{name}"
    done = interpreter.run(
        ["-c", SCRIPT.format(module=MODULE), "[[8, 64, 64]]"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), variable: "maybe"},
    )
    assert done.returncode != 0
    allowed = {"PROBE": "0 or 1", "KERNELS": "auto, avx512, brgemm or none"}[name]
    assert f'{variable} must be {allowed}, got "maybe"' in done.stderr


@pytest.mark.parametrize("kernels", ["avx512", "brgemm", "none"])
def test_other_kernels_have_their_own_decisions(
    tmp_path: Path, probed: tuple[Path, Report], kernels: str
) -> None:
    path, _ = probed
    before = path.read_bytes()
    theirs, _ = decide(tmp_path, [(8, 64, 64)], TORCH_NEURONX_GEMM_KERNELS=kernels)
    if kernels != "none":  # which measures nothing
        assert theirs.exists()
    assert theirs != path
    assert path.read_bytes() == before


def test_a_class_is_measured_in_the_form_that_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix for a batch of single columns: as rows it could be folded into one product."""
    core = pytest.importorskip(MODULE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no decision from there
    core.gemm_clear()
    a, b, out = torch.rand(1, 2, 2), torch.rand(2, 2, 1), torch.empty(2, 2, 1)
    if core.gemm_run(a.expand(2, 2, 2), b, out):
        torch.testing.assert_close(out, a @ b)
    core.gemm_clear()
