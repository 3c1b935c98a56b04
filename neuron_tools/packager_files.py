"""Files out of a NEFF, and onto the disk: nothing outside the folder, nothing half written."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from neuronxcc.files import write_whole
from neuronxcc.neff.container import HEADER_BYTES, MOST_BYTES, parse_header, read_files
from neuronxcc.neff.features import TORCHNEURON
from neuronxcc.program.errors import NeffError

_MOST_FILES = 1 << 20


def take_out(data: bytes, most_bytes: int = MOST_BYTES) -> Mapping[str, bytes | memoryview]:
    """The files in a NEFF by their names: relative, without "..", each once.

    Args:
        data: The whole file, of ours or of the vendor's compiler.
        most_bytes: Refuse to unpack more than this.

    Raises:
        NeffError: It is no NEFF, is damaged, or has something else than plain files in it.
    """
    if parse_header(data).feature_bits & TORCHNEURON:
        return read_files(data, most_bytes)
    return foreign_files(data, most_bytes)


def foreign_files(data: bytes, most_bytes: int = MOST_BYTES) -> dict[str, bytes]:
    """The files in a NEFF that somebody else made; how it is compressed is not documented.

    Raises:
        NeffError: As above.
    """
    files: dict[str, bytes] = {}
    left = most_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(data[HEADER_BYTES:]), mode="r:*") as archive:
            for count, member in enumerate(archive):
                if member.isdir():
                    continue
                name = _plain_name(member.name)
                if not member.isreg() or name in files or count >= _MOST_FILES:
                    raise NeffError(f"the archive's member {member.name!r} is no plain file")
                left -= member.size
                if left < 0:
                    raise NeffError(f"the content unpacks to more than {most_bytes} bytes")
                opened = archive.extractfile(member)
                assert opened is not None  # of a plain file
                files[name] = opened.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, NeffError):
            raise
        raise NeffError(f"the content is no archive that can be unpacked: {error}") from None
    return files


def _plain_name(name: str) -> str:
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    bad = not parts or path.is_absolute() or ".." in parts or "\\" in name or "\0" in name
    if bad:
        raise NeffError(f"the archive's member {name!r} would lie outside the folder")
    return "/".join(parts)


def new_folder(
    target: Path, files: Mapping[str, bytes | memoryview], *, replace: bool = False
) -> None:
    """Write a folder, under another name first; it appears with all its files or not at all.

    Args:
        target: The folder.
        files: Contents by name.
        replace: Replace a folder that is there.

    Raises:
        FileExistsError: It is there, and may not be replaced.
        OSError: It can't be written.
    """
    refuse_existing(target, replace=replace, folder=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        draft.chmod(0o777 & ~_umask())
        with _out_of_the_way(target):
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_new(target: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a file, under another name first.

    Raises:
        FileExistsError: It is there, and may not be replaced.
        OSError: It can't be written.
    """
    refuse_existing(target, replace=replace, folder=False)
    write_whole(target, content)


def refuse_existing(target: Path, *, replace: bool, folder: bool) -> None:
    """Refuse a place that is taken, unless it is a folder (or a file) that may be replaced.

    Raises:
        FileExistsError: With what to do.
    """
    if not (target.exists() or target.is_symlink()):
        return
    fits = target.is_dir() == folder and not target.is_symlink()
    if not (replace and fits):
        remedy = "name another by -o" + (", or replace it by --force" if fits else "")
        raise FileExistsError(f"{target} is there already: {remedy}")


@contextmanager
def _out_of_the_way(target: Path) -> Iterator[None]:
    """Move what is at a path away; back if the block fails, else it is deleted."""
    if not target.exists():
        yield
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        target.rename(aside / "old")
        try:
            yield
        except BaseException:
            (aside / "old").rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    """The process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
