"""The shared tier of the compile cache: any file system that fsspec reaches, `s3://` for one."""

from __future__ import annotations

import secrets
from typing import Any

from neuronxcc.cache.key import CacheKey
from neuronxcc.cache.local import NEFF_NAME
from neuronxcc.files import UntrustedFileError, read_regular
from neuronxcc.neff.container import MOST_NEFF_BYTES


class RemoteStore:
    """Entries below a URL, laid out as in the local tier, NEFFs only.

    Raises:
        ImportError: The package for the URL's protocol isn't installed; the message names it.
        ValueError: The protocol is not known.
    """

    def __init__(self, url: str, version: str) -> None:
        import fsspec  # noqa: PLC0415 - only users of a shared cache pay for its import

        self.url = url.rstrip("/")
        self._files: Any
        self._files, root = fsspec.core.url_to_fs(self.url)
        self._home = f"{root.rstrip('/')}/{version}"

    def place(self, key: CacheKey) -> str:
        """Path of an entry's NEFF in its file system."""
        return f"{self._home}/{key.folder}/{NEFF_NAME}"

    def read(self, key: CacheKey) -> bytes | None:
        """The NEFF of a key, None if there is none; the file system's errors pass.

        Raises:
            UntrustedFileError: What is there is no file (a pipe, say, or a link), or too large.
        """
        place = self.place(key)
        try:
            if "file" in _protocols(self._files):
                return read_regular(place, MOST_NEFF_BYTES, anyone=True)
            data: bytes = self._files.cat_file(place, start=0, end=MOST_NEFF_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(data) > MOST_NEFF_BYTES:
            raise UntrustedFileError(f"{place} has more than {MOST_NEFF_BYTES} bytes")
        return data

    def write(self, key: CacheKey, data: bytes) -> None:
        """Put the NEFF of a key in place; the file system's errors pass.

        An object store shows an object when all of it is there. Elsewhere the file is renamed.
        """
        place = self.place(key)
        folder = place.rpartition("/")[0]
        if not _writes_are_atomic(self._files):
            self._files.makedirs(folder, exist_ok=True)
            temporary = f"{folder}/.tmp-{secrets.token_hex(8)}"
            try:
                self._files.pipe_file(temporary, data)
                self._files.mv(temporary, place)
            except BaseException:
                if self._files.exists(temporary):
                    self._files.rm_file(temporary)
                raise
        else:
            self._files.pipe_file(place, data)


_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss"})


def _writes_are_atomic(files: Any) -> bool:
    return bool(_OBJECT_STORES & _protocols(files))


def _protocols(files: Any) -> set[str]:
    protocol = files.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)
