"""Programs, the NEFF files that hold them, and the cache of compiled ones.

The cache and its keys are imported when they are first asked for: whoever only reads or writes a
file does not wait for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from neuronxcc.neff.container import Neff, NeffInfo, read_neff, write_neff
from neuronxcc.neff.errors import NeffError
from neuronxcc.neff.messages import CacheWarning
from neuronxcc.neff.program import Program

if TYPE_CHECKING:
    from neuronxcc.neff.cache import CompileCache, Compiled, open_cache
    from neuronxcc.neff.key import CacheKey, make_key

__all__ = [
    "CacheKey",
    "CacheWarning",
    "CompileCache",
    "Compiled",
    "Neff",
    "NeffError",
    "NeffInfo",
    "Program",
    "make_key",
    "open_cache",
    "read_neff",
    "write_neff",
]

_LATER = {
    "CacheKey": "key",
    "CompileCache": "cache",
    "Compiled": "cache",
    "make_key": "key",
    "open_cache": "cache",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
