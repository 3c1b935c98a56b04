"""Strides: which movement operators are mere views of memory, and of which memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.geometry.index import reshape_groups

Strides = tuple[int, ...]


class Layout(NamedTuple):
    """Where the elements of a tensor lie in a buffer, in elements."""

    strides: Strides
    offset: int = 0


def contiguous(shape: Sequence[int]) -> Strides:
    """Row-major strides."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill their memory without holes or overlap, in any order."""
    step = 1
    for stride, extent in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= extent
    return True


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of memory, both included; strides not negative."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def reshaped(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Strides | None:
    """Strides under another shape; None if there are none."""
    if any(n == 0 for n in new):
        return contiguous(new)
    result: list[int] = []
    for (i0, i1), (j0, j1) in reshape_groups(shape, new):
        # Join the old dimensions of the group to one run, which then may be cut anywhere.
        runs: list[list[int]] = []  # extent, stride
        for extent, stride in zip(shape[i0:i1], strides[i0:i1], strict=True):
            if extent == 1:
                continue
            if runs and runs[-1][1] == stride * extent:
                runs[-1] = [runs[-1][0] * extent, stride]
            else:
                runs.append([extent, stride])
        part: list[int] = []
        for extent in reversed(new[j0:j1]):
            if extent == 1:
                part.append(runs[-1][1] if runs else 1)
                continue
            if not runs or runs[-1][0] % extent:
                return None
            part.append(runs[-1][1])
            runs[-1][0] //= extent
            runs[-1][1] *= extent
            if runs[-1][0] == 1:
                runs.pop()
        result.extend(reversed(part))
    return tuple(result)


def viewed(node: Node, source: Layout) -> Layout | None:
    """The layout of a movement operator's result over its operand's memory; None if it copies.

    A reversed dimension has a negative stride.
    """
    strides, offset = source
    shape = node.srcs[0].shape
    if node.op is Op.TRANSPOSE:
        return Layout(tuple(strides[d] for d in node["permutation"]), offset)
    if node.op is Op.BROADCAST_IN_DIM:
        result = [0] * node.type.rank
        for dim, extent, stride in zip(node["dims"], shape, strides, strict=True):
            result[dim] = stride if extent == node.shape[dim] else 0
        return Layout(tuple(result), offset)
    if node.op is Op.SLICE:
        offset += sum(a * s for a, s in zip(node["starts"], strides, strict=True))
        steps = zip(node["strides"], strides, strict=True)
        return Layout(tuple(a * s for a, s in steps), offset)
    if node.op is Op.REVERSE:
        turned = node["dims"]
        offset += sum((shape[d] - 1) * strides[d] for d in turned if shape[d])
        return Layout(tuple(-s if d in turned else s for d, s in enumerate(strides)), offset)
    if node.op is Op.RESHAPE:
        new = reshaped(shape, strides, node.shape)
        return None if new is None else Layout(new, offset)
    raise TypeError(f"{node!r} is not a view")


def unviewed(node: Node, strides: Strides) -> Strides | None:
    """The strides that the operand needs so that the result, a bijective view, has these."""
    if node.op is Op.TRANSPOSE:
        result = [0] * len(strides)
        for dim, stride in zip(node["permutation"], strides, strict=True):
            result[dim] = stride
        return tuple(result)
    if node.op is Op.RESHAPE:
        return reshaped(node.shape, strides, node.srcs[0].shape)
    if node.op is Op.BROADCAST_IN_DIM and node.type.size == node.srcs[0].type.size:
        return tuple(strides[d] for d in node["dims"])
    return None


def collapsed(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The one stride of dimensions taken together in row-major order; None if there is none."""
    run: tuple[int, int] | None = None
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if run is None:
            run = (extent, stride)
        elif run[1] == stride * extent:
            run = (run[0] * extent, stride)
        else:
            return None
    return 0 if run is None else run[1]
