"""Where the files are. The device asks here too, so this imports nothing else of the tools."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from neuronxcc.environment.tools import TORCH_NEURONX_REGISTRY_DIR

_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory in it is private


def directory(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the directory of the files, which may not exist; None if none are to be kept.

    Args:
        environ: The environment; that of the process if None.
    """
    said = TORCH_NEURONX_REGISTRY_DIR.text(environ)
    if said:
        return None if said == "off" else Path(said).expanduser().absolute()
    in_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)
    return (_MEMORY if in_memory else Path(tempfile.gettempdir())) / f"torchneuron-{os.getuid()}"
