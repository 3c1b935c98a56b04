"""Which values are moved and not computed: these keep every bit of the element in memory.

A register holds a float narrower than 32 bits as a float32 and a pred as one bit. The way there and
back makes a signalling NaN quiet, gives others another payload, and costs instructions, so what is
only loaded, chosen and stored stays as memory has it.
"""

from __future__ import annotations

from neuronxcc.codegen.llvm.formats import memory_elem, register_elem
from neuronxcc.codegen.loop import Scalar
from neuronxcc.codegen.space import Space
from neuronxcc.ir.op import Op


def moved(space: Space) -> frozenset[Scalar]:
    """The expressions that are elements of memory, or a choice of which one may be."""
    found: set[Scalar] = set()
    for scalar in space.order:
        if memory_elem(scalar.dtype) == register_elem(scalar.dtype):
            continue
        chosen = scalar.op is Op.SELECT and not found.isdisjoint(scalar.srcs[1:])
        if scalar.what == "load" or chosen or scalar.op is Op.BITCAST_CONVERT:
            found.add(scalar)
    return frozenset(found)
