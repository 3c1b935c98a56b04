"""Which operators AOTAutograd takes apart before the compiler sees the graph.

Everything that PyTorch can express by simpler operators and that has no lowering here: an entry in
the table of lowerings is enough to keep an operator whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload

from torch_neuronx.dynamo.registry import TABLE

aten = torch.ops.aten

# Kept whole although PyTorch has a decomposition and we have no lowering.
# Their decompositions end in operators of `prims` that nobody implements; the host call then names
# what the user called.
KEPT: frozenset[Any] = frozenset(
    {
        aten.igamma.default,
        aten.igammac.default,
        aten.special_bessel_j0.default,
        aten.special_bessel_j1.default,
        aten.special_spherical_bessel_j0.default,
    }
)


# What ATen's kernels compute in one pass over memory and PyTorch takes apart into gathers, products
# and scatters of every corner or edge: 40 to 50 times slower. Their parts also make NaN of what is
# infinite beside a sample. A NeuronCore's instructions are made of the parts.
WHOLE: tuple[OpOverload, ...] = (
    aten.grid_sampler_2d.default,
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)


@functools.cache
def decompositions(*, instructions: bool = False) -> Mapping[OpOverload, Callable[..., Any]]:
    """Operator -> function that computes it from simpler ones.

    Args:
        instructions: For a NeuronCore's instructions, or to say how long these take; otherwise for
            programs that run here.
    """
    assert TABLE, "the importer fills the table: it is below, and lowerings need this module"
    table: dict[Any, Callable[..., Any]] = {**decomposition_table, **core_aten_decompositions()}
    taken_apart = WHOLE if instructions else ()
    return {
        target: function
        for target, function in table.items()
        if target in taken_apart or (target not in TABLE and target not in KEPT)
    }
