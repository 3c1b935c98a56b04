"""Directories that belong to this user alone, also below `/tmp`, where anyone can be first."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


class NotPrivateError(OSError):
    """A directory that others could have written to, or that isn't one."""


def private_directory(path: Path) -> Path:
    """Create a directory with mode 0700, or check that the one that is there is private.

    Raises:
        NotPrivateError: It is no directory (a link, say), it belongs to another user, or others
            may write to it.
        OSError: It cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()  # not stat(): a link could be bent later
    check_private(path, status)
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def check_private(path: Path, status: os.stat_result) -> None:
    """Check that a directory's status is that of a private one.

    Raises:
        NotPrivateError: It isn't.
    """
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivateError(f"{path} is no directory")
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivateError(
            f"{path} can be written to by others (mode {status.st_mode & 0o777:o})"
        )


def shared_name(path: Path) -> Path:
    """The private sibling to use where `path` belongs to somebody else."""
    return path.with_name(f"{path.name}-{os.geteuid()}")
