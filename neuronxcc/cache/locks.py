"""A lock between processes, held by an open file: the kernel releases it when the holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neuronxcc.files import UntrustedFileError

PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.05
_open: set[int] = set()


@contextmanager
def file_lock(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a file, waiting for it as long as it takes.

    Threads exclude each other too. The file stays: removing it while another process opens it
    would give two processes two locks.

    Args:
        path: The file, created if need be.
        on_wait: Called once, with who holds the lock, when waiting takes more than two seconds.

    Raises:
        OSError: The file cannot be opened, is none, or its file system has no locks.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    _open.add(descriptor)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UntrustedFileError(f"{path} is no regular file")
        _wait(descriptor, on_wait)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        if descriptor in _open:
            _open.remove(descriptor)
            os.close(descriptor)


def _after_fork() -> None:
    """Close a child's copies: they would keep a lock that its parent gave back or died with."""
    for descriptor in _open:
        os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def _wait(descriptor: int, on_wait: Callable[[str], None]) -> None:
    start, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EINTR}:
                raise
        else:
            return
        if not told and time.monotonic() - start > PATIENCE_SECONDS:
            told = True
            on_wait(_holder(descriptor))
        time.sleep(_POLL_SECONDS)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 20, 0).decode(errors="replace")
    return f"process {text}" if text.isdigit() else "another process"
