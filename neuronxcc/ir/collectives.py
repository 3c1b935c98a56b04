"""Builders of collectives; `build` has them all.

A group is a list of groups of ranks, as XLA's replica groups: the ranks of each do the collective
among themselves. For what doesn't depend on their number, `all_reduce` and
`collective_broadcast`, () are all ranks. All collectives take two more arguments:

    name: The process group that does it when a program runs. A graph without names has a meaning
        (`reference.evaluate_ranks`), but a program cannot be made of it.
    channel: Makes a node unlike all others, as XLA's channel does, and says which of a graph's
        collectives comes first: all ranks must do the same ones in the same order, so they are
        neither merged nor reordered by what only one rank knows. None: equal nodes are one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from neuronxcc.ir.make import axes, axis, make
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_broadcast",
    "collective_permute",
    "reduce_scatter",
]

Groups = Sequence[Sequence[int]]

RANKS: Final = "ranks:"
#: The name of everybody who runs a program, however many that will be.
ALL_RANKS: Final = f"{RANKS}all"


def group_name(groups: Groups) -> str:
    """The name of ranks, "ranks:0,1;2,3"; who loads a program makes the process groups."""
    return RANKS + ";".join(",".join(map(str, group)) for group in groups)


def _common(group: Groups, name: str, channel: int | None) -> dict[str, Any]:
    attrs: dict[str, Any] = {"group": tuple(tuple(ranks) for ranks in group)}
    return attrs | _named(name, channel)


def _named(name: str, channel: int | None) -> dict[str, Any]:
    """Only what is given, so that graphs without names look as they did."""
    attrs: dict[str, Any] = {"name": name} if name else {}
    return attrs if channel is None else {**attrs, "channel": channel}


def all_reduce(
    x: Node, kind: str, group: Groups, *, name: str = "", channel: int | None = None
) -> Node:
    """Combine the tensors of all ranks of a group.

    Args:
        x: Of one type on all ranks.
        kind: add, mul, min, max, and, or, xor, as `reduce`; or avg: the sum, divided by the number
            of ranks (integers round toward zero). Summed in the order of the ranks.
        group: See the module.
        name: See the module.
        channel: See the module.
    """
    return make(Op.ALL_REDUCE, (x,), kind=kind, **_common(group, name, channel))


def all_gather(
    x: Node, dim: int, group: Groups, *, name: str = "", channel: int | None = None
) -> Node:
    """Join the tensors of all ranks of a group along a dimension."""
    dim = axis(Op.ALL_GATHER, dim, x.type.rank)
    return make(Op.ALL_GATHER, (x,), dim=dim, **_common(group, name, channel))


def reduce_scatter(
    x: Node, kind: str, dim: int, group: Groups, *, name: str = "", channel: int | None = None
) -> Node:
    """Combine the tensors of a group, as `all_reduce`; each rank keeps its part of a dimension."""
    dim = axis(Op.REDUCE_SCATTER, dim, x.type.rank)
    return make(Op.REDUCE_SCATTER, (x,), kind=kind, dim=dim, **_common(group, name, channel))


def all_to_all(
    x: Node,
    split_dim: int,
    concat_dim: int,
    group: Groups,
    *,
    send: Sequence[int] | None = None,
    receive: Sequence[int] | None = None,
    name: str = "",
    channel: int | None = None,
) -> Node:
    """Split along one dimension, send part i to rank i of the group, join along the other.

    Args:
        x: On every rank.
        split_dim: Divided into equal parts,
        concat_dim: along which the parts that come in are joined, in order of the ranks.
        group: See the module.
        send: Rows that each rank gets instead, with `receive`; both dimensions are then 0.
        receive: Rows that each rank sends to this one.
        name: See the module.
        channel: See the module.
    """
    dims = axes(Op.ALL_TO_ALL, (split_dim, concat_dim), x.type.rank)
    attrs = _common(group, name, channel)
    if send is not None or receive is not None:
        attrs |= {"send": tuple(send or ()), "receive": tuple(receive or ())}
    return make(Op.ALL_TO_ALL, (x,), split_dim=dims[0], concat_dim=dims[1], **attrs)


def collective_broadcast(
    x: Node, group: Groups, root: int = 0, *, name: str = "", channel: int | None = None
) -> Node:
    """The tensor of one rank of a group: of number `root` in it (XLA's: of the first)."""
    return make(Op.COLLECTIVE_BROADCAST, (x,), root=root, **_common(group, name, channel))


def collective_permute(
    x: Node, pairs: Sequence[tuple[int, int]], *, name: str = "", channel: int | None = None
) -> Node:
    """Send from the first to the second rank of each pair; who receives nothing has zeros."""
    named = _named(name, channel)
    return make(Op.COLLECTIVE_PERMUTE, (x,), pairs=tuple(map(tuple, pairs)), **named)
