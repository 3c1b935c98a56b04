"""Files that other processes may look at while they are written."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file under another name first, so that its name stands for all of it.

    The process's umask decides who may read it. What belongs to one user alone, in a directory
    where others may write, is for `neuronxcc.neff.local.replace_file`.

    Raises:
        OSError: It can't be written; an old file of that name is as it was.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.writelines(parts)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
