"""Splitting the joint graph of AOTAutograd into forward and backward."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition


def partition(
    joint: torch.fx.GraphModule, inputs: Any, **options: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's min-cut partitioner; random numbers are always saved, never drawn again.

    Drawing them again would need the generator's state of the first time; what they were used
    for (dropout masks) is small.
    """
    for node in joint.graph.nodes:
        target = node.target
        if (
            "recompute" in node.meta
            and isinstance(target, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded in target.tags
        ):
            # Without the mark it is like any operator outside of checkpoints: never run twice.
            for each in (node, *node.users):
                if each is node or each.target is operator.getitem:
                    each.meta.pop("recompute", None)
    return min_cut_rematerialization_partition(joint, inputs, **options)
