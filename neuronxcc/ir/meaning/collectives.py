"""Collectives: what a rank gets, given how the ranks meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from neuronxcc.ir.dtypes import from_numpy
from neuronxcc.ir.meaning.elementwise import Array, arithmetic, cast
from neuronxcc.ir.meaning.reduction import COMBINE
from neuronxcc.ir.op import Op

Groups = tuple[tuple[int, ...], ...]


class Exchange(Protocol):
    """Lets the ranks of a group see each other's values."""

    def __call__(self, name: str, group: Groups, value: Array) -> tuple[int, Sequence[Array]]:
        """Return the caller's place in its group, and the values of the group's ranks, in order.

        Args:
            name: Of the process group, "" if the graph has none.
            group: The groups of ranks, each in its order; (): all ranks are one.
            value: The caller's.
        """


def alone(name: str, group: Groups, value: Array) -> tuple[int, Sequence[Array]]:
    """The exchange of the only rank."""
    if len(group[0] if group else (0,)) != 1:
        raise NotImplementedError(
            f"a collective of the ranks {group} in {name or 'an unnamed group'}; pass `exchange` "
            "to run it, or use evaluate_ranks"
        )
    return 0, [value]


def collective(op: Op, attrs: Mapping[str, Any], x: Array, exchange: Exchange) -> Array:
    """The result of one rank.

    Args:
        op: Which.
        attrs: Attributes of the node.
        x: What this rank brings.
        exchange: How it meets the others. They bring the same shape, but in an uneven ALL_TO_ALL.
    """
    name, group = attrs.get("name", ""), attrs.get("group", ())
    place, tensors = exchange(name, group, x)
    if "send" in attrs:
        sent = exchange(name, group, np.asarray(attrs["send"], np.int64))[1]
        return np.concatenate([_part(*rank, place) for rank in zip(tensors, sent, strict=True)])
    return np.asarray(_MEANINGS[op](attrs, place, tensors))


def _part(x: Array, rows: Array, place: int) -> Array:
    """What a rank that sends these numbers of rows sends to the one at `place`."""
    start = int(rows[:place].sum())
    return x[start : start + int(rows[place])]


def _permute(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    sources = [a for a, b in attrs["pairs"] if b == place]
    return tensors[sources[0]] if sources else np.zeros_like(tensors[place])


def _gather(attrs: Mapping[str, Any], _place: int, tensors: Sequence[Array]) -> Array:
    return np.concatenate(tensors, attrs["dim"])


def _all_to_all(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    parts = [np.split(t, len(tensors), attrs["split_dim"])[place] for t in tensors]
    return np.concatenate(parts, attrs["concat_dim"])


def _reduce(attrs: Mapping[str, Any], _place: int, tensors: Sequence[Array]) -> Array:
    kind = attrs["kind"]
    dtype = from_numpy(tensors[0].dtype)
    combine = COMBINE["add" if kind == "avg" else kind]
    total = arithmetic(tensors[0])
    for tensor in tensors[1:]:
        total = combine(total, arithmetic(tensor))
    if kind == "avg" and np.issubdtype(total.dtype, np.integer):
        # Sums wrap as the type does before they are divided.
        total = np.asarray(cast(np.asarray(total), dtype))
        total = np.sign(total) * (np.abs(total) // total.dtype.type(len(tensors)))
    elif kind == "avg":
        total = total / total.dtype.type(len(tensors))
    return cast(np.asarray(total), dtype)


def _reduce_scatter(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    return np.split(_reduce(attrs, place, tensors), len(tensors), attrs["dim"])[place]


_MEANINGS: dict[Op, Callable[[Mapping[str, Any], int, Sequence[Array]], Array]] = {
    Op.ALL_REDUCE: _reduce,
    Op.ALL_GATHER: _gather,
    Op.REDUCE_SCATTER: _reduce_scatter,
    Op.ALL_TO_ALL: _all_to_all,
    Op.COLLECTIVE_BROADCAST: lambda attrs, _place, tensors: tensors[attrs["root"]],
    Op.COLLECTIVE_PERMUTE: _permute,
}
