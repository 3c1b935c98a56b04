"""Limits of containers, from files as Linux writes them, in both forms and at every level."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neuronxcc.host_limits import memory_files, processors

HERE = len(os.sched_getaffinity(0))
V2 = "0::/{}\n"
V1 = "9:name=systemd:/\n4:memory:/{0}\n3:cpu,cpuacct:/{0}\n0::/\n"


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def test_no_groups(tmp_path: Path) -> None:
    assert processors(tmp_path, "") == HERE
    assert memory_files(tmp_path, "") == []
    assert processors(tmp_path, V2.format("gone")) == HERE
    assert memory_files(tmp_path, V1.format("gone")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", HERE),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),  # half a processor is still one thread
        ("100001 100000\n", min(2, HERE)),
        ("6400000 100000\n", HERE),
        ("", HERE),
        ("nonsense\n", HERE),
        ("-5 100000\n", HERE),
        ("100000 0\n", HERE),
    ],
)
def test_processors_of_version_2(tmp_path: Path, text: str, expected: int) -> None:
    write(tmp_path, cpu__max=text)
    assert processors(tmp_path, V2.format("")) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", HERE), ("100000", 1), ("20000", 1)])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_processors_of_version_1(tmp_path: Path, mount: str, quota: str, expected: int) -> None:
    write(tmp_path / mount / "docker" / "a", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert processors(tmp_path, V1.format("docker/a")) == expected


def test_the_narrowest_level_counts(tmp_path: Path) -> None:
    write(tmp_path / "slice" / "pod", cpu__max="max 100000")
    write(tmp_path / "slice", cpu__max="100000 100000")
    write(tmp_path, cpu__max="max 100000")
    assert processors(tmp_path, V2.format("slice/pod")) == 1


def test_memory_of_every_level(tmp_path: Path) -> None:
    write(tmp_path / "slice" / "pod", memory__max="1\n", memory__current="1\n")
    write(tmp_path / "slice", memory__max="max\n")
    names = [limit for limit, *_ in memory_files(tmp_path, V2.format("slice/pod"))]
    assert names == [str(tmp_path / "slice/pod/memory.max"), str(tmp_path / "slice/memory.max")]


def test_memory_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "memory", memory__limit_in_bytes="1")
    # The path is the host's; the container sees its own group at the mount.
    ((limit, usage, statistics, reclaimable),) = memory_files(tmp_path, V1.format("docker/b"))
    assert limit == str(tmp_path / "memory" / "memory.limit_in_bytes")
    assert usage == str(tmp_path / "memory" / "memory.usage_in_bytes")
    assert statistics == str(tmp_path / "memory" / "memory.stat")
    assert reclaimable == "total_inactive_file"


def test_a_path_cannot_leave_the_mount(tmp_path: Path) -> None:
    write(tmp_path, cpu__max="100000 100000")
    write(tmp_path / "inside", cpu__max="max 100000")
    assert processors(tmp_path / "inside", V2.format("../..")) == HERE
