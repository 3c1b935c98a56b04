"""Makes nodes of operands and complete attributes, their types inferred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.table import infer

__all__ = ["Ints", "axes", "axis", "make"]

Ints = int | Sequence[int]


def make(op: Op, srcs: Iterable[Node], **attrs: Any) -> Node:
    """Make a node, its types inferred; attributes complete and normalised.

    Raises:
        ShapeError: the operator does not take these operands.
    """
    src_tuple = tuple(srcs)
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
    types = infer(op, tuple(src.type for src in src_tuple), frozen)
    return Node.make(op, types, src_tuple, frozen)


def axis(op: Op, dim: int, rank: int) -> int:
    """Normalise a dimension that may be negative."""
    if not -rank <= dim < rank:
        raise ShapeError(op, f"dim {dim}; must be in [{-rank}, {rank})")
    return dim % rank


def axes(op: Op, dims: Ints | None, rank: int) -> tuple[int, ...]:
    """Normalise dimensions; None means all, an integer one."""
    if dims is None:
        return tuple(range(rank))
    return tuple(axis(op, d, rank) for d in ((dims,) if isinstance(dims, int) else dims))
