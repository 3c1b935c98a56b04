"""Files that other processes may look at while they are written, or may have written."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path


class UntrustedFileError(OSError):
    """A name in a cache leads to something that no cache keeps there."""


def read_regular(
    path: Path | str,
    most_bytes: int,
    *,
    links: bool = False,
    anyone: bool = False,
    folder: int | None = None,
) -> bytes:
    """Read a file without trusting that it is one: the way to read an entry of any cache.

    A pipe or a device is not waited for, a link not followed, a file that claims to be enormous not
    begun, and no more is read than was there when it was opened.

    Args:
        path: The file.
        most_bytes: Refuse a larger one.
        links: Follow them, as for a file that the user names.
        anyone: It may belong to somebody else than this user or root.
        folder: Descriptor of the directory that a relative path starts from.

    Raises:
        UntrustedFileError: It is no regular file, belongs to another user (not root), or is too
            large.
        OSError: It cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if links else flags | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise UntrustedFileError(f"{path} is no regular file") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedFileError(f"{path} is no regular file")
        if not anyone and status.st_uid not in {os.geteuid(), 0}:
            raise UntrustedFileError(f"{path} belongs to user {status.st_uid}")
        if status.st_size > most_bytes:
            raise UntrustedFileError(
                f"{path} has {status.st_size} bytes; at most {most_bytes} are read"
            )
        # One call of the system reads 2 GiB at most.
        content = os.read(descriptor, status.st_size)
        while len(content) < status.st_size:
            part = os.read(descriptor, status.st_size - len(content))
            if not part:  # it was cut off meanwhile
                break
            content += part
        return content
    finally:
        os.close(descriptor)


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file under another name first, so that its name stands for all of it.

    The process's umask decides who may read it. What belongs to one user alone, in a directory
    where others may write, is for `neuronxcc.cache.local.replace_file`.

    Raises:
        OSError: It can't be written; an old file of that name is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:  # never through a link that somebody put there
            file.writelines(parts)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
