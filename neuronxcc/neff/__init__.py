"""Programs, the NEFF files that hold them, and the cache of compiled ones."""

from neuronxcc.neff.cache import CompileCache, Compiled, open_cache
from neuronxcc.neff.container import Neff, NeffInfo, read_neff, write_neff
from neuronxcc.neff.errors import NeffError
from neuronxcc.neff.key import CacheKey, make_key
from neuronxcc.neff.messages import CacheWarning
from neuronxcc.neff.program import Program

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
