"""The local tier of the compile cache: a directory on this machine.

    <root>/neuronxcc-0.1.0/MODULE_<graph>+<flags>/
        model.neff       the program; complete in itself and checked by its own hash
        model.done       empty: the program is complete
        model.log        how it was compiled
        compile_flags.json   the compiler's options, a list of words
        key.json         the parts of the key, for people and for explanations only
        <name>.neff      a link to model.neff, if the model was given a name
        .lock            held by whoever compiles this entry

A file is written under a temporary name and renamed, so a reader sees all of it or nothing. It is
not forced to the disk: what a power failure leaves half written doesn't have its hash.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from neuronxcc import faults
from neuronxcc.cache.key import CacheKey, Part
from neuronxcc.cache.locks import file_lock
from neuronxcc.cache.private import NotPrivateError, check_private
from neuronxcc.files import read_regular
from neuronxcc.neff.container import MOST_NEFF_BYTES
from neuronxcc.program.errors import NeffError

NEFF_NAME = "model.neff"
KEY_NAME = "key.json"
LOCK_NAME = ".lock"
DONE_NAME = "model.done"
LOG_NAME = "model.log"
FLAGS_NAME = "compile_flags.json"
FAILED_NAME = "model.failed"  # written by neuron_parallel_compile: why it could not be compiled
TEMPORARY = ".tmp-"
MOST_TEXT_BYTES = 1 << 24  # of the small files beside it
_HASH = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class LocalStore:
    """Entries in a directory.

    Args:
        root: The directory, created by the first write.
        version: Name of the directory of this version's entries.
        private: Nothing is read from it or written to it while it isn't this user's alone, which
            is looked at each time: it may have been deleted and made again by somebody else.
    """

    def __init__(self, root: Path, version: str, *, private: bool = False) -> None:
        self.root = root
        self.home = root / version
        self._private = private

    def path(self, key: CacheKey) -> Path:
        """Where the NEFF of a key is or would be."""
        return self.home / key.folder / NEFF_NAME

    def read(self, key: CacheKey) -> bytes | None:
        """The NEFF of a key, None if there is none.

        Raises:
            OSError: It is there and cannot be read, or is no file of this user's.
        """
        try:
            self._check()
            path = self.path(key)
            data = read_regular(path, MOST_NEFF_BYTES)
            return faults.reach(faults.CACHE_READ, str(path), data)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(
        self, key: CacheKey, data: bytes, name: str, beside: Mapping[str, bytes] | None = None
    ) -> Path:
        """Put the NEFF of a key in place, over one that is there.

        Args:
            key: The key.
            data: The NEFF.
            name: Of the model, for people.
            beside: Further files of the entry by name; the NEFF comes after them.

        Raises:
            OSError: The directory cannot be written to, or the disk is full. Nothing has changed.
        """
        path = self.path(key)
        self._make(path.parent)
        for leftover in path.parent.glob(f"{TEMPORARY}*"):
            # The caller holds the entry's lock, so this one's writer is dead.
            leftover.unlink(missing_ok=True)
        for other, content in {**(beside or {}), KEY_NAME: description_of(key, name)}.items():
            replace_file(path.with_name(other), content)
        replace_file(path, data)
        replace_file(path.with_name(DONE_NAME), b"")
        with suppress(IsADirectoryError):  # none of ours, and no failure
            path.with_name(FAILED_NAME).unlink(missing_ok=True)
        if name:
            self._link(path, name)
        return path

    def put(self, key: CacheKey, files: Mapping[str, bytes]) -> Path:
        """Write files of an entry that is not compiled yet; returns its folder.

        Raises:
            OSError: The directory cannot be written to, or the disk is full.
        """
        folder = self.path(key).parent
        self._make(folder)
        for name, content in files.items():
            replace_file(folder / name, content)
        return folder

    def lock(self, key: CacheKey, on_wait: Callable[[str], None]) -> AbstractContextManager[None]:
        """The lock of an entry.

        Raises:
            OSError: There can be none.
        """
        folder = self.path(key).parent
        self._make(folder)
        return file_lock(folder / LOCK_NAME, on_wait)

    def entries(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Folders of the entries of all versions and what their keys were made of, newest first."""
        files = [(path.lstat().st_mtime, path) for path in self.root.glob(f"*/MODULE_*/{KEY_NAME}")]
        for _, path in sorted(files, reverse=True):
            # Being written, or damaged: nothing to explain by.
            with suppress(OSError, ValueError, RecursionError):
                self._check()
                description = json.loads(read_regular(path, MOST_TEXT_BYTES))
                if isinstance(description, dict):
                    yield path.parent, description

    def _make(self, folder: Path) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for directory in (self.root, self.home, folder):
            directory.mkdir(mode=0o700, exist_ok=True)
            if directory != self.root and directory.is_symlink():
                raise NotPrivateError(f"{directory} is a link")
        self._check()

    def _check(self) -> None:
        if self._private:
            check_private(self.root, self.root.lstat())

    @staticmethod
    def _link(path: Path, name: str) -> None:
        link = path.with_name(_FILE_NAME.sub("_", name).strip(".")[:100] + ".neff")
        if link.name not in {NEFF_NAME, ".neff"} and not link.is_symlink():
            with suppress(OSError):  # a file system without links: the name is in key.json too
                link.symlink_to(NEFF_NAME)


def description_of(key: CacheKey, name: str) -> bytes:
    """The content of key.json."""
    parts = {label: {"hash": part.hash, "text": part.shown} for label, part in key.parts.items()}
    return json.dumps({"key": key.digest, "name": name, "parts": parts}, indent=1).encode()


def key_of_description(data: bytes) -> tuple[CacheKey, str]:
    """The key that a key.json describes, computed from its parts, and the name in it.

    Args:
        data: From anywhere.

    Raises:
        NeffError: It is no description of a key.
    """
    try:
        description = json.loads(data)
        parts = {
            label: Part(_hexadecimal(part["hash"]), _text(part["text"]))
            for label, part in sorted(description["parts"].items())
        }
        name = description["name"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NeffError(f"it does not describe a key: {type(error).__name__}: {error}") from None
    if not isinstance(name, str):
        raise NeffError("it does not describe a key: its name is no text")
    return CacheKey.of_parts(parts), name


def _hexadecimal(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ValueError(f"a hash is 64 hexadecimal digits, not {str(value)[:80]!r}")
    return value


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"the text of a part is a str or none, not {type(value).__name__}")
    return value


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that its name stands for all of the old content or all of the new."""
    data = faults.reach(faults.FILE_WRITE, str(path), data)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
