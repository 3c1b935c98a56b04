"""The instructions of a NeuronCore: functions, enumerations, objects.

The functions come from the table (`nki.isa.table`): `help(nki.isa.nc_matmul)` shows operands,
engines and the source of the cost.
"""

from typing import Any, Final

from nki.absent import absent
from nki.errors import NkiValidationError
from nki.isa.enums import (
    dge_mode,
    dma_engine,
    engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from nki.isa.functions import FORMER, FUNCTIONS
from nki.isa.objects import NkiInstruction, VirtualRegister
from nki.objects import NKIObject

__all__ = [
    "NKIObject",
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "dge_mode",
    "dma_engine",
    "engine",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]

# Deprecated names of the members.
tensor_engine: Final = engine.tensor
vector_engine: Final = engine.vector
scalar_engine: Final = engine.scalar
gpsimd_engine: Final = engine.gpsimd
unknown_engine: Final = engine.unknown


# Kernels call them by the hundred thousand, and `__getattr__` is asked for what is not here.
globals().update(FUNCTIONS)


def __getattr__(name: str) -> Any:
    found = FUNCTIONS.get(name) or FORMER.get(name)
    if found is None:
        raise absent("nki.isa", name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *FUNCTIONS})
