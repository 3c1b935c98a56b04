"""Compiled programs in `torch.compiler.save_cache_artifacts()`, PyTorch's portable cache.

An artifact is an entry of the compile cache: what its key is made of, and its NEFF. Machine code is
no part of it: a NEFF is data, of which every number is checked before it runs, while nothing in the
bytes tells whether machine code is what it says; it is generated again from the program, about 10
ms a kernel. Imported when PyTorch's side has been, see `_register.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch.compiler._cache import (
    CacheArtifact,
    CacheArtifactFactory,
    CacheArtifactManager,
)

if TYPE_CHECKING:
    from neuronxcc.cache.key import CacheKey

_LENGTH = struct.Struct("<Q")


class ProgramArtifact(CacheArtifact):
    """One entry: 8 bytes, the length of its `key.json`; that text; the NEFF."""

    @staticmethod
    def type() -> str:
        """Return the name under which PyTorch lists them: `CacheInfo.neuron_artifacts`."""
        return "neuron"

    def populate_cache(self) -> None:
        """Keep the program in the cache that the environment names, unless it is there.

        What is damaged, too large, or another key's is warned about and not kept.
        """
        # Imported late: this module is loaded by programs that compile nothing, too.
        from neuronxcc.cache.cache import open_cache  # noqa: PLC0415
        from neuronxcc.cache.messages import warn  # noqa: PLC0415
        from neuronxcc.neff import NeffError  # noqa: PLC0415
        from neuronxcc.options import from_environment  # noqa: PLC0415

        try:
            entry = _unpack(self.key, self.content)
            open_cache(from_environment().wrapper).adopt(entry.key, entry.neff, entry.name)
        except NeffError as error:
            warn(f"a program among the artifacts of torch.compiler's cache is not used: {error}")


@dataclass(frozen=True, slots=True)
class _Entry:
    key: CacheKey
    name: str
    neff: bytes


def record(key: CacheKey, name: str, path: Path | None) -> None:
    """Have the next `save_cache_artifacts()` contain a program.

    Args:
        key: The program's.
        name: Of the model, for people.
        path: The NEFF in the local cache; None if it is not kept, and so isn't here.
    """
    from neuronxcc.cache.local import description_of  # noqa: PLC0415
    from neuronxcc.cache.messages import warn  # noqa: PLC0415
    from neuronxcc.files import read_regular  # noqa: PLC0415
    from neuronxcc.neff.container import MOST_NEFF_BYTES  # noqa: PLC0415

    if path is None:
        return
    try:
        neff = read_regular(path, MOST_NEFF_BYTES)
    except OSError as error:  # another process emptied the cache
        warn(f"{name!r} will not be in torch.compiler.save_cache_artifacts(): {error}")
        return
    text = description_of(key, name)
    content = _LENGTH.pack(len(text)) + text + neff
    CacheArtifactManager.record_artifact(ProgramArtifact.type(), key.digest, content)


def _unpack(digest: str, content: bytes) -> _Entry:
    """Take an artifact of that key apart; the key is computed from its parts, and not believed.

    Raises:
        NeffError: It is none.
    """
    from neuronxcc.cache.local import MOST_TEXT_BYTES, key_of_description  # noqa: PLC0415
    from neuronxcc.neff import NeffError  # noqa: PLC0415
    from neuronxcc.neff.container import MOST_NEFF_BYTES  # noqa: PLC0415

    if len(content) < _LENGTH.size:
        raise NeffError(f"it has {len(content)} bytes")
    (length,) = _LENGTH.unpack_from(content)
    begin = _LENGTH.size + length
    if length > MOST_TEXT_BYTES or begin > len(content):
        raise NeffError(f"its description would have {length} bytes")
    if len(content) - begin > MOST_NEFF_BYTES:
        raise NeffError(f"it has more than {MOST_NEFF_BYTES} bytes")
    key, name = key_of_description(content[_LENGTH.size : begin])
    if key.digest != digest:
        raise NeffError("it is the program of another key")
    return _Entry(key, name, content[begin:])


def register() -> None:
    """Tell PyTorch of this kind of artifact."""
    CacheArtifactFactory.register(ProgramArtifact)
