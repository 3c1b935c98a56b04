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


@functools.cache
def decompositions() -> Mapping[OpOverload, Callable[..., Any]]:
    """Operator -> function that computes it from simpler ones."""
    assert TABLE, "the importer fills the table: it is below, and lowerings need this module"
    table: dict[Any, Callable[..., Any]] = {**decomposition_table, **core_aten_decompositions()}
    return {
        target: function
        for target, function in table.items()
        if target not in TABLE and target not in KEPT
    }
