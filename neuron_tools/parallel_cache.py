"""Maintenance of the compile cache: nothing is touched that the cache did not write itself."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from neuron_tools.parallel_messages import Speaker
from neuronxcc.cache.local import (
    DONE_NAME,
    FAILED_NAME,
    FLAGS_NAME,
    KEY_NAME,
    LOCK_NAME,
    LOG_NAME,
    NEFF_NAME,
    TEMPORARY,
    LocalStore,
)
from neuronxcc.collected import HLO_NAME, REQUEST_NAME, TEXT_NAME

_VERSION = re.compile(r"neuronxcc-[0-9A-Za-z.+-]+")
_ENTRY = re.compile(r"MODULE_[0-9a-f]{20}\+[0-9a-f]{8}")
_FILES = frozenset(
    {
        NEFF_NAME, DONE_NAME, LOG_NAME, FLAGS_NAME, KEY_NAME, FAILED_NAME, LOCK_NAME,
        HLO_NAME, TEXT_NAME, REQUEST_NAME,
    }
)  # fmt: skip


def clean(store: LocalStore, say: Speaker) -> int:
    """Remove all entries of all versions; what is not the cache's own stays, and is named.

    Returns:
        The exit code.
    """
    removed = 0
    for folder in _entries(store.root):
        strange = [path for path in sorted(folder.iterdir()) if not _is_ours(path)]
        for path in folder.iterdir():
            if path not in strange:
                path.unlink()
        if strange:
            say.warning("CACHE", f"{strange[0]} is not the cache's, so it stays with its folder")
        else:
            folder.rmdir()
            removed += 1
    for folder in _versions(store.root):
        with suppress(OSError):  # something else is in it
            folder.rmdir()
    say.info("CACHE", f"{removed} entries were removed from {store.root}")
    return 0


def clear_locks(store: LocalStore, say: Speaker) -> int:
    """Remove lock files that nobody holds, and drafts of processes that died.

    Locks are held by the kernel for a process, so none is left behind when that dies: this only
    tidies up. A lock that is held is left alone, and named.

    Returns:
        The exit code.
    """
    removed = held = 0
    for folder in _entries(store.root):
        lock = folder / LOCK_NAME
        if lock.is_file() and not lock.is_symlink():
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held += 1
                say.warning("CACHE", f"{lock} is held by a running process, so it stays")
                continue
            else:
                lock.unlink()
                removed += 1
            finally:
                os.close(descriptor)
        for draft in folder.glob(f"{TEMPORARY}*"):
            draft.unlink(missing_ok=True)
    say.info("CACHE", f"{removed} locks were removed from {store.root}, {held} are in use")
    return 0


def _versions(root: Path) -> Iterator[Path]:
    if root.is_dir():
        for path in sorted(root.iterdir()):
            if _VERSION.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield path


def _entries(root: Path) -> Iterator[Path]:
    for version in _versions(root):
        for path in sorted(version.iterdir()):
            if _ENTRY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield path


def _is_ours(path: Path) -> bool:
    if path.is_symlink():
        return path.suffix == ".neff" and os.readlink(path) == NEFF_NAME  # noqa: PTH115 - a text
    return path.is_file() and (path.name in _FILES or path.name.startswith(TEMPORARY))
