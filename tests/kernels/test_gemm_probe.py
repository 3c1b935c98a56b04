"""The probe's decisions and their file: kept, shared, and never trusted when damaged."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

MODULE = os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")

# Decides for some shapes and prints the report, then lets the exit write the file.
SCRIPT = """
import importlib, json, sys, torch
core = importlib.import_module({module!r})
torch.set_num_threads(2)
for m, n, k in json.loads(sys.argv[1]):
    a, b, out = torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)
    core.gemm_run(a, b, out)
print(json.dumps([core.gemm_probe_path(), core.gemm_probe_report()]))
"""

Report = list[dict[str, object]]


def decide(
    cache: Path, shapes: list[tuple[int, int, int]], **environment: str
) -> tuple[Path, Report]:
    """Run the script with its cache in `cache`; the file's path and what was decided."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module=MODULE), json.dumps(shapes)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path, report = json.loads(done.stdout)
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
    return folder / "gemm_probe.txt", report


def test_the_file_is_private_and_in_the_cache_directory(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    path, report = probed
    assert path == tmp_path / "torchneuron" / "gemm_probe.txt"
    assert len(report) == 1
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_decisions_are_read_and_not_measured_again(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    path, report = probed
    before = path.read_bytes()
    assert decide(tmp_path, [(8, 64, 64)])[1] == report
    assert path.read_bytes() == before


def test_new_classes_are_added_to_the_file(tmp_path: Path, probed: tuple[Path, Report]) -> None:
    _, first = probed
    _, both = decide(tmp_path, [(30, 40, 50)])
    assert len(both) == 2
    assert first[0] in both


def test_home_is_used_without_xdg(tmp_path: Path) -> None:
    path, _ = decide(Path("relative-is-invalid"), [(8, 64, 64)], HOME=str(tmp_path))
    assert path == tmp_path / ".cache" / "torchneuron" / "gemm_probe.txt"


def damage_header(text: str) -> str:
    return text.replace("probe 1", "probe 9")


def damage_host(text: str) -> str:
    return text.replace("torch-2", "torch-1")


def damage_body(text: str) -> str:
    return text.rstrip("\n") + "1\n"


def damage_checksum(text: str) -> str:
    lines = text.split("\n")
    lines[2] = "0" * 16
    return "\n".join(lines)


def cut_short(text: str) -> str:
    return text[: len(text) * 2 // 3]


def cut_in_header(text: str) -> str:
    return "\n".join(text.split("\n")[:3])


def empty(text: str) -> str:
    return text[:0]


def binary(text: str) -> str:
    return "\0\1" * len(text)


@pytest.mark.parametrize(
    "damage",
    [
        damage_header,
        damage_host,
        damage_body,
        damage_checksum,
        cut_short,
        cut_in_header,
        empty,
        binary,
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(
    tmp_path: Path, probed: tuple[Path, Report], damage: object
) -> None:
    assert callable(damage)
    path, _ = probed
    good = path.read_text()
    damaged = damage(good)
    assert damaged != good
    path.write_text(damaged)
    _, report = decide(tmp_path, [(8, 64, 64)])
    assert len(report) == 1
    lines = path.read_text().split("\n")
    assert lines[:2] == good.split("\n")[:2]
    assert len(lines) == len(good.split("\n"))


def test_a_file_that_others_may_write_is_ignored(
    tmp_path: Path, probed: tuple[Path, Report]
) -> None:
    path, _ = probed
    path.chmod(0o666)
    decide(tmp_path, [(8, 64, 64)])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "measured and written anew"


def test_a_link_is_ignored(tmp_path: Path, probed: tuple[Path, Report]) -> None:
    path, _ = probed
    target = tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    before = target.read_bytes()
    decide(tmp_path, [(8, 64, 64), (30, 40, 50)])
    assert not path.is_symlink()
    assert target.read_bytes() == before


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sparse(path: Path) -> None:
    os.truncate(path, 100 << 30)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("hostile", [pipe, sparse, endless])
def test_what_is_no_such_file_is_replaced(
    tmp_path: Path, probed: tuple[Path, Report], hostile: Callable[[Path], None]
) -> None:
    path, _ = probed
    hostile(path)
    _, report = decide(tmp_path, [(8, 64, 64)])
    assert len(report) == 1
    assert path.is_file()
    assert not path.is_symlink()
    assert path.stat().st_size < 10_000


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
    path, _ = decide(blocked, [(8, 64, 64)])
    assert not path.exists()


def test_without_the_probe_nothing_is_measured_or_written(tmp_path: Path) -> None:
    path, report = decide(tmp_path, [(8, 64, 64)], TORCH_NEURONX_GEMM_PROBE="0")
    assert report == []
    assert not path.exists()


@pytest.mark.parametrize("name", ["PROBE", "KERNELS"])
def test_a_wrong_setting_is_explained(tmp_path: Path, name: str) -> None:
    variable = f"TORCH_NEURONX_GEMM_{name}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module=MODULE), "[[8, 64, 64]]"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), variable: "maybe"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    allowed = {"PROBE": "0 or 1", "KERNELS": "auto, avx512, brgemm or none"}[name]
    assert f'{variable} must be {allowed}, got "maybe"' in done.stderr


@pytest.mark.parametrize("kernels", ["avx512", "brgemm", "none"])
def test_other_kernels_have_their_own_decisions(
    tmp_path: Path, probed: tuple[Path, Report], kernels: str
) -> None:
    path, _ = probed
    identity = path.read_text().split("\n")[1]
    _, report = decide(tmp_path, [(8, 64, 64)], TORCH_NEURONX_GEMM_KERNELS=kernels)
    if report:
        assert path.read_text().split("\n")[1] != identity


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
