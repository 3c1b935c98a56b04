"""Rules of collectives: what ranks of a group do together."""

from __future__ import annotations

from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    KIND_DTYPES,
    REDUCE_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
)

# "avg": the sum divided by the number of ranks; integers round toward zero.
COLLECTIVE_KINDS = (*REDUCE_KINDS, "avg")


def group_size(op: Op, attrs: Attrs) -> int:
    """Number of ranks in each group; groups partition the ranks and are of one size."""
    groups = attrs["group"]
    ranks = [rank for group in groups for rank in group]
    if not ranks or len(set(ranks)) != len(ranks) or len({len(g) for g in groups}) != 1:
        raise ShapeError(op, f"group {groups}; need disjoint groups of ranks, of one size")
    return len(groups[0])


def _check_kind(op: Op, attrs: Attrs, t: TensorType) -> None:
    kind = attrs["kind"]
    if kind not in COLLECTIVE_KINDS:
        raise ShapeError(op, f"kind {kind!r}; allowed: {', '.join(COLLECTIVE_KINDS)}")
    if t.dtype not in KIND_DTYPES["add" if kind == "avg" else kind]:
        raise ShapeError(op, f"{t.dtype.value} has no {kind}")


def _resized(t: TensorType, dim: int, extent: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:dim], extent, *t.shape[dim + 1 :]))


def _split(op: Op, t: TensorType, dim: int, size: int) -> TensorType:
    if t.shape[dim] % size:
        raise ShapeError(op, f"dim {dim} of {t} does not divide among {size} ranks")
    return _resized(t, dim, t.shape[dim] // size)


def all_reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    _check_kind(op, attrs, types[0])
    if attrs["group"]:  # (): all ranks, however many
        group_size(op, attrs)
    return types


def all_gather_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension grows by the number of ranks in a group."""
    arity(op, types, 1)
    dim = check_dim(op, attrs, types[0].rank)
    return (_resized(types[0], dim, types[0].shape[dim] * group_size(op, attrs)),)


def reduce_scatter_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension is divided among the ranks of a group."""
    arity(op, types, 1)
    _check_kind(op, attrs, types[0])
    return (_split(op, types[0], check_dim(op, attrs, types[0].rank), group_size(op, attrs)),)


def all_to_all_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension is divided, the other grows; or rows go where `send` and `receive` say."""
    arity(op, types, 1)
    size, (t,) = group_size(op, attrs), types
    split, concat = (check_dim(op, attrs, t.rank, name) for name in ("split_dim", "concat_dim"))
    if "send" not in attrs and "receive" not in attrs:
        part = _split(op, t, split, size)
        return (_resized(part, concat, part.shape[concat] * size),)
    send, receive = attrs.get("send", ()), attrs.get("receive", ())
    fits = len(send) == len(receive) == size and min(*send, *receive, 0) == 0
    if not fits or split or concat or sum(send) != t.shape[0]:
        raise ShapeError(
            op,
            f"send {send}, receive {receive} of {t}; need a number of rows for each of {size} "
            "ranks, which are those of dim 0",
        )
    return (_resized(t, 0, sum(receive)),)


def broadcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    size, root = group_size(op, attrs) if attrs["group"] else 1, attrs["root"]
    if not 0 <= root < size:
        raise ShapeError(op, f"root {root} of a group of {size}")
    return types


def permute_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """A rank sends to one and receives from one."""
    arity(op, types, 1)
    for side in zip(*attrs["pairs"], strict=True):
        if len(set(side)) != len(side):
            raise ShapeError(op, f"pairs {attrs['pairs']}; a rank sends and receives once")
    return types
