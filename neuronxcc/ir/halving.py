"""Reductions by any computation: halves are combined until one element is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from neuronxcc.ir import build
from neuronxcc.ir.node import Node


def reduce_by_halves(
    xs: Sequence[Node], dims: Sequence[int], join: Callable[[list[Node]], Sequence[Node]]
) -> tuple[Node, ...]:
    """Reduce tensors together.

    Args:
        xs: Of one shape, with an element or more along the dimensions.
        dims: Which are reduced.
        join: Takes tensors of one shape, twice as many as `xs`: first those that come before.
            Returns one for each of `xs`.

    Returns:
        One tensor for each of `xs`, without the dimensions.
    """
    kept = [d for d in range(xs[0].type.rank) if d not in dims]
    shape = [xs[0].shape[d] for d in kept]
    count, last = math.prod(xs[0].shape[d] for d in dims), len(kept)
    parts = [build.reshape(build.transpose(x, [*kept, *dims]), [*shape, count]) for x in xs]
    while count > 1:
        half = count // 2
        low = [build.slice_dim(x, last, 0, half) for x in parts]
        high = [build.slice_dim(x, last, half, 2 * half) for x in parts]
        joined = list(join([*low, *high]))
        if count % 2:
            rest = [build.slice_dim(x, last, count - 1, count) for x in parts]
            joined = [build.concatenate(pair, last) for pair in zip(joined, rest, strict=True)]
        parts, count = joined, half + count % 2
    return tuple(build.reshape(x, shape) for x in parts)
