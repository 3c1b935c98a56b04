"""Functions of tapes that are no loop kernels: a fixed table by name.

Each has two implementations: the meaning here, in NumPy, slow and obvious; and one in C++ under the
same name in `torch_neuronx/csrc/nki` (native.h says how to add one). To add one here: write a file
for its family with a `NATIVES` of its own and merge that below. Tests compare what the two sides
declare and what they do.
"""

from __future__ import annotations

from neuronxcc.program.errors import NeffError
from neuronxcc.program.natives import collective, gather, indices, random, scan, search
from neuronxcc.program.natives.table import Native, NativeError, NativeSlot, Params

__all__ = ["NATIVES", "Native", "NativeError", "NativeSlot", "Params", "native"]

NATIVES: dict[str, Native] = {
    **indices.NATIVES,
    **search.NATIVES,
    **gather.NATIVES,
    **scan.NATIVES,
    **random.NATIVES,
    **collective.NATIVES,
}


def native(name: str) -> Native:
    """Return the function of that name; NeffError if there is none."""
    found = NATIVES.get(name)
    if found is None:
        raise NeffError(f"there is no native function {name[:60]!r}")
    return found
