"""Free dimensions of several operands, split and merged until they agree.

An instruction sees its operands as (partitions, elements per partition), whatever the shapes are.
A kernel needs dimensions along which every operand has one stride.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

__all__ = ["Dims", "merge", "refine", "row_major", "split"]

Dims = tuple[tuple[int, int], ...]  # (extent, stride), from the outermost


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense array of this shape."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def merge(dims: Dims) -> Dims:
    """Drop dimensions of extent 1, and join neighbours that continue each other."""
    merged: list[tuple[int, int]] = []
    for extent, stride in dims:
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * stride:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged)


def refine(
    operands: Sequence[Dims], fixed: Collection[int] = ()
) -> tuple[tuple[int, ...], list[tuple[int, ...]]] | int:
    """Find common extents.

    Args:
        operands: of each its dimensions; all have as many elements.
        fixed: numbers of operands of which there is no dense copy.

    Returns:
        Extents, and the strides of each operand; or the number of an operand whose dimensions
        don't fit those of the others, which a dense copy of it does.
    """
    rest = [list(merge(dims)) for dims in operands]
    extents: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    while any(rest):
        inner = [dims[-1][0] if dims else 1 for dims in rest]
        common = math.gcd(*inner)
        if common == 1:
            # The one with the most dimensions has something to gain from being dense.
            free = [i for i in range(len(rest)) if i not in fixed]
            return max(free, key=lambda i: (len(merge(operands[i])), i))
        extents.append(common)
        for dims, found in zip(rest, strides, strict=True):
            extent, stride = dims.pop()
            found.append(stride)
            if extent != common:
                dims.append((extent // common, stride * common))
    return _joined(extents[::-1], [found[::-1] for found in strides])


def _joined(
    extents: list[int], strides: list[list[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Join neighbouring dimensions where all operands allow it."""
    sizes: list[int] = []
    joined: list[list[int]] = [[] for _ in strides]
    for d, extent in enumerate(extents):
        steps = [found[d] for found in strides]
        if sizes and all(to[-1] == step * extent for to, step in zip(joined, steps, strict=True)):
            sizes[-1] *= extent
            for to, step in zip(joined, steps, strict=True):
                to[-1] = step
            continue
        sizes.append(extent)
        for to, step in zip(joined, steps, strict=True):
            to.append(step)
    return tuple(sizes), [tuple(found) for found in joined]


def split(dims: Dims, keep: int) -> tuple[Dims, Dims] | None:
    """Divide dimensions into those of the first `keep` and the others; None if one straddles."""
    if keep == 1:
        return (), dims
    total = 1
    for at, (extent, stride) in enumerate(dims):
        if total == keep:
            return dims[:at], dims[at:]
        if keep % (total * extent):
            first, rest = divmod(keep, total)
            if rest or extent % first:
                return None
            inner = extent // first
            return (*dims[:at], (first, stride * inner)), ((inner, stride), *dims[at + 1 :])
        total *= extent
    return (dims, ()) if total == keep else None
