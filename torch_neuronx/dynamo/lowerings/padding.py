"""Padding with a tensor's own elements: movement alone.

PyTorch's decompositions convert to float32, which changes NaN, and look up positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten
# The elements to put (before, after) a dimension, given how many; the numbers are positive.
_Side = Callable[[Node, int, int], Node]


def _padded(x: Node, padding: Sequence[int], before: _Side, after: _Side) -> Node:
    """X with elements put around its last dimensions; a negative number cuts some off."""
    for i in range(len(padding) // 2):
        dim = x.type.rank - 1 - i
        low, high = padding[2 * i : 2 * i + 2]
        size = x.shape[dim] + low + high
        start, stop = max(0, -low), x.shape[dim] - max(0, -high)
        parts = [b.slice_dim(x, dim, start, stop)] if start <= stop else []
        if low > 0:
            parts.insert(0, before(x, dim, low))
        if high > 0:
            parts.append(after(x, dim, high))
        x = b.concatenate(parts, dim)
        # One side may cut off more than there is, and the rest from what the other side adds.
        first = x.shape[dim] - size if low < 0 else 0
        x = b.slice_dim(x, dim, first, first + size)
    return x


def _repeated(x: Node, dim: int, start: int, times: int) -> Node:
    shape = tuple(times if d == dim else n for d, n in enumerate(x.shape))
    return b.broadcast_to(b.slice_dim(x, dim, start, start + 1), shape)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(_cx: Context, x: Node, padding: Sequence[int]) -> Node:
    return _padded(
        x,
        padding,
        lambda x, dim, n: b.reverse(b.slice_dim(x, dim, 1, n + 1), dim),
        lambda x, dim, n: b.reverse(
            b.slice_dim(x, dim, x.shape[dim] - 1 - n, x.shape[dim] - 1), dim
        ),
    )


@lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(_cx: Context, x: Node, padding: Sequence[int]) -> Node:
    return _padded(
        x,
        padding,
        lambda x, dim, n: _repeated(x, dim, 0, n),
        lambda x, dim, n: _repeated(x, dim, x.shape[dim] - 1, n),
    )
