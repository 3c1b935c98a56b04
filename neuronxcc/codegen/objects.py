"""Machine code on disk: a private, bounded, content-addressed store that trusts nothing it reads.

The name of a file is the hash of everything its content was made from; the content begins with its
own hash. A file that is damaged, or that another user could have written, is never used.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import secrets
import stat
import threading
from contextlib import suppress
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from neuronxcc.neff.private import private_directory, shared_name

_log = logging.getLogger(__name__)
_MAGIC = b"TNOBJ\x00\x01\n"
_HASH_BYTES = 32
_LIMIT_BYTES = 256 << 20
_SUFFIX = ".obj"


def default_directory() -> Path | None:
    """$XDG_CACHE_HOME/torchneuron/objects, else below ~/.cache; None without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # a relative path there is invalid and ignored
        home = os.environ.get("HOME", "")
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
            private, a warning is logged once and nothing is cached.
        limit_bytes: What the files may take together; the ones unused for longest go first.
    """

    def __init__(self, directory: Path | None, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._checked: Path | None = None
        self._lock = threading.Lock()

    def _home(self) -> Path | None:
        """The directory, checked once."""
        with self._lock:
            if self._checked is None and self._directory is not None:
                try:
                    self._checked = self._private(self._directory)
                except OSError as error:
                    _log.warning("compiled kernels are not cached: %s", error)
                    self._directory = None
            return self._checked

    @staticmethod
    def _private(directory: Path) -> Path:
        try:
            return private_directory(directory)
        except PermissionError:
            return private_directory(shared_name(directory))

    def get(self, key: str) -> bytes | None:
        """The content stored under a key; None if there is none that can be trusted."""
        home = self._home()
        if home is None:
            return None
        path = home / (key + _SUFFIX)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("cannot read %s: %s", path, error)
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                _log.warning("%s is not ours; ignored", path)
                return None
            data = file.read()
            with suppress(OSError):  # a read-only file system: the order of eviction is a hint
                os.utime(file.fileno())
        head = len(_MAGIC) + _HASH_BYTES
        content = data[head:]
        digest = hashlib.sha256(content).digest()
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != digest:
            _log.warning("%s is damaged; compiled anew", path)
            return None
        return content

    def put(self, key: str, content: bytes) -> None:
        """Stores content; readers see all of it or nothing. A full disk is logged, not raised."""
        home = self._home()
        if home is None:
            return
        data = _MAGIC + hashlib.sha256(content).digest() + content
        path = home / (key + _SUFFIX)
        temporary = home / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(data)
            temporary.replace(path)
            self._evict(home)
        except OSError as error:
            _log.warning("cannot store compiled kernels in %s: %s", home, error)
            temporary.unlink(missing_ok=True)

    def _evict(self, home: Path) -> None:
        found = []
        for entry in os.scandir(home):
            with suppress(FileNotFoundError):  # another process was faster
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


@functools.cache
def default_cache() -> ObjectCache:
    """The cache of this process."""
    return ObjectCache(default_directory())
