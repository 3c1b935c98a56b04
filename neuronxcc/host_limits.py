"""How much of this computer the process may use.

A container's limits are those of its control groups (cgroups), which neither the number of
processors nor /proc/meminfo shows: a container with two processors of 64 would start 64 threads,
and one that may take 1 GiB of memory would be killed. Linux has two forms of the files, which
`man 7 cgroups` describes; both are read, and so is the group of every level above ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neuronxcc.environment.development import TORCH_NEURONX_CGROUP_ROOT

_OWN = Path("/proc/self/cgroup")
# Of a group's memory: limit, usage, statistics, and the line of these that counts pages of files
# that nobody has used for a while. They are part of the usage, but not lost to us.
_MEMORY = {
    2: ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.stat",
        "total_inactive_file",
    ),
}


def groups(controller: str, root: Path, own: str) -> Iterator[tuple[int, Path]]:
    """Yield the directories of the groups that limit this process, ours first.

    Args:
        controller: "memory" or "cpu".
        root: Where the file systems of the groups are mounted.
        own: The text of /proc/self/cgroup. Its paths may be those of the host, which a container
            doesn't see: what is mounted at the root is its own group then.

    Yields:
        The version of the files, 1 or 2, and a directory that exists.
    """
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, each) for each in _upwards(root, path))
        elif controller in controllers.split(","):
            # Two controllers may share a mount, which has the name of one or of both.
            for name in dict.fromkeys((controllers, controller)):
                yield from ((1, each) for each in _upwards(root / name, path))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in {"", "..", "."}]
    for count in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:count])
        if directory.is_dir():
            yield directory


def _here(root: Path | None, own: str | None) -> tuple[Path, str]:
    if own is None:
        own = _OWN.read_text(encoding="utf-8") if _OWN.exists() else ""
    return root or TORCH_NEURONX_CGROUP_ROOT.get(), own


def memory_files(
    root: Path | None = None, own: str | None = None
) -> list[tuple[str, str, str, str]]:
    """Return where the limits of this process's memory are written.

    Args:
        root: As of `groups`; None is `TORCH_NEURONX_CGROUP_ROOT`.
        own: As of `groups`; None is this process's.

    Returns:
        For every group: the files of its limit, of its usage and of its statistics, and the name in
        the last of what can be taken back from the usage.
    """
    return [
        (str(group / limit), str(group / usage), str(group / statistics), reclaimable)
        for version, group in groups("memory", *_here(root, own))
        for limit, usage, statistics, reclaimable in (_MEMORY[version],)
        if (group / limit).exists()
    ]


def processors(root: Path | None = None, own: str | None = None) -> int:
    """Return how many processors this process may keep busy, at least 1; arguments as above.

    That is the number that it may be scheduled on, or the time that a group may take of them in a
    period, rounded up, if that is less.
    """
    allowed = [float(len(os.sched_getaffinity(0)))]
    for version, group in groups("cpu", *_here(root, own)):
        if version == 2:
            quota, period = _two(group / "cpu.max")
        else:
            quota, period = _one(group / "cpu.cfs_quota_us"), _one(group / "cpu.cfs_period_us")
        if quota > 0 and period > 0:
            allowed.append(quota / period)
    return max(1, -int(-min(allowed) // 1))


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def _number(word: str) -> int:
    """Return the number, 0 for "max", -1 and everything else that is no limit."""
    return int(word) if word.isascii() and word.isdigit() else 0


def _one(path: Path) -> int:
    words = _words(path)
    return _number(words[0]) if len(words) == 1 else 0


def _two(path: Path) -> tuple[int, int]:
    words = _words(path)
    return (_number(words[0]), _number(words[1])) if len(words) == 2 else (0, 0)
