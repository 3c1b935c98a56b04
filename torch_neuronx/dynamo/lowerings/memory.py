"""Tensors as they lie in memory, which the IR says nothing of: a vector in the order of strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.node import Node

Ints = Sequence[int]


def memory_order(x: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense tensor from the outermost in memory on; None if it has gaps."""
    strides = tuple(map(int, x.stride()))
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    dense = is_dense([int(x.size(d)) for d in order], [strides[d] for d in order])
    return order if dense else None


def is_dense(size: Ints, stride: Ints) -> bool:
    """Return whether elements follow one another, the last dimension innermost."""
    expected = 1
    for extent, step in zip(reversed(size), reversed(stride), strict=True):
        if extent != 1 and step != expected:
            return False
        expected *= extent
    return True


def in_memory(x: Node, order: Ints) -> Node:
    """The elements of x as a vector, with dimensions in this order."""
    return b.reshape(b.transpose(x, order), (x.type.size,))


def from_memory(memory: Node, shape: Ints, order: Ints) -> Node:
    """The inverse of `in_memory`: a tensor of this shape."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return b.transpose(b.reshape(memory, [shape[d] for d in order]), back)
