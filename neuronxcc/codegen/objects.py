"""Machine code on disk: a private, bounded, content-addressed store that trusts nothing it reads.

The name of a file is the hash of everything its content was made from, its key; the content begins
with a hash of key and content. A file that is damaged, that is another key's, or that another user
could have written, is never used.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from neuronxcc.cache.messages import unwritten
from neuronxcc.cache.private import check_private, private_directory, shared_name
from neuronxcc.environment.arithmetic import HOME, XDG_CACHE_HOME
from neuronxcc.files import read_regular

_log = logging.getLogger(__name__)
_MAGIC = b"TNOBJ\x00\x02\n"
_HASH_BYTES = 32
_LIMIT_BYTES = 256 << 20
#: So much of the limit a process writes before it looks again at what all files take: looking at
#: 20,000 of them takes as long as compiling a kernel.
_UNCHECKED_SHARE = 16
_SUFFIX = ".obj"


def default_directory() -> Path | None:
    """$XDG_CACHE_HOME/torchneuron/objects, else below ~/.cache; None without a home."""
    base = XDG_CACHE_HOME.get()
    if not base.startswith("/"):  # a relative path there is invalid and ignored
        home = HOME.get()
        if not home.startswith("/"):
            return None
        base = home + "/.cache"
    return Path(base) / "torchneuron" / "objects"


@functools.cache
def code_version() -> str:
    """Identifies the code generator itself: its sources, llvmlite and LLVM."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"{digest.hexdigest()} llvmlite {llvmlite.__version__} LLVM {version}"


class ObjectCache:
    """Files in a directory of the user's own.

    Args:
        directory: Created with mode 0700 by the first write. If it cannot be had, or is not
            private, that is logged once and nothing is cached. It is looked at each time: it may
            have been deleted, and made again by somebody else.
        limit_bytes: What the files may take together; the ones unused for longest go first. Of
            several processes that write at once, each may exceed it by a sixteenth.
    """

    def __init__(self, directory: Path | None, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._unchecked: int | None = None  # bytes written since the last look; None before it
        self._told: set[str] = set()

    def get(self, key: str) -> bytes | None:
        """The content stored under a key; None if there is none that can be trusted."""
        with self._opened() as home:
            if home is None or self._directory is None:
                return None
            name = key + _SUFFIX
            try:
                data = read_regular(name, self._limit, folder=home)
                content = _content(key, data)
            except FileNotFoundError:
                return None
            except OSError as error:
                _log.warning("cannot read compiled kernels in %s: %s", self._directory, error)
                return None
            if content is None:
                _log.warning("%s is damaged; compiled anew", self._directory / name)
                return None
            with suppress(OSError):  # a read-only file system: the order of eviction is a hint
                os.utime(name, dir_fd=home, follow_symlinks=False)
            return content

    def put(self, key: str, content: bytes) -> None:
        """Stores content; readers see all of it or nothing. A full disk is logged, not raised."""
        with self._opened() as home:
            if home is None:
                return
            temporary = f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=home), "wb") as file:
                    file.write(_MAGIC + _digest(key, content) + content)
                os.replace(temporary, key + _SUFFIX, src_dir_fd=home, dst_dir_fd=home)
                self._keep_within(home, len(_MAGIC) + _HASH_BYTES + len(content))
            except OSError as error:
                if (trouble := unwritten(error)) is not None:
                    _log.warning(
                        "cannot store compiled kernels in %s: %s", self._directory, trouble
                    )
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=home)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """A descriptor of the directory, None if there is no private one.

        What is done through the descriptor is done in the directory that was looked at.
        """
        descriptor = None
        if self._directory is not None:
            try:
                descriptor = _open_private(self._directory)
            except OSError as error:
                if str(error) not in self._told:
                    self._told.add(str(error))
                    if (trouble := unwritten(error)) is not None:
                        _log.warning("compiled kernels are not cached: %s", trouble)
        try:
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _keep_within(self, home: int, written: int) -> None:
        """Evict files where what was written may exceed the limit."""
        share = self._limit // _UNCHECKED_SHARE
        if self._unchecked is not None and self._unchecked + written <= share:
            self._unchecked += written
            return
        _evict(home, self._limit - share)
        self._unchecked = 0


def _evict(home: int, limit: int) -> None:
    found = []
    for entry in os.scandir(home):
        with suppress(FileNotFoundError):  # another process was faster
            status = entry.stat(follow_symlinks=False)
            found.append((status.st_mtime, status.st_size, entry.name))
    total = sum(size for _, size, _ in found)
    for _, size, name in sorted(found):
        if total <= limit:
            return
        with suppress(OSError):  # it is gone, or a directory that somebody put there
            os.unlink(name, dir_fd=home)
            total -= size


def _open_private(directory: Path) -> int:
    """Open a private directory, or its private sibling if it is somebody else's.

    Raises:
        OSError: There is none.
    """
    try:
        return _open_checked(private_directory(directory))
    except PermissionError:
        return _open_checked(private_directory(shared_name(directory)))


def _open_checked(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check_private(directory, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + content).digest()


def _content(key: str, data: bytes) -> bytes | None:
    """The content stored under a key; None if it is damaged, or was stored under another key."""
    head = len(_MAGIC) + _HASH_BYTES
    content = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != _digest(key, content):
        return None
    return content


@functools.cache
def default_cache() -> ObjectCache:
    """The cache of this process."""
    return ObjectCache(default_directory())
