"""Collectives: what the ranks of a group do together, and what each of them gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import COMBINE, Array, arithmetic, cast
from neuronxcc.ir.dtypes import DType, from_numpy
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    KIND_DTYPES,
    REDUCE_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
)
from neuronxcc.ir.operators.definition import (
    WIDE,
    Case,
    Cost,
    Evaluator,
    Exchange,
    Gap,
    Groups,
    Kind,
    Operator,
    Rule,
    names,
    takes,
    tensor,
)
from neuronxcc.targets import Engine

# The attributes of a node, the rank's place in its group, the values of the group's ranks.
_Result = Callable[[Mapping[str, Any], int, Sequence[Array]], Array]

# "avg": the sum divided by the number of ranks; integers round toward zero.
COLLECTIVE_KINDS = (*REDUCE_KINDS, "avg")


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
    return np.asarray(_RESULTS[op](attrs, place, tensors))


def _part(x: Array, rows: Array, place: int) -> Array:
    """Return the rows that a rank sends to the one at `place`."""
    start = int(rows[:place].sum())
    return x[start : start + int(rows[place])]


def _wide(code: str, what: str, accept: str) -> Gap:
    """Integers that the collective sums in float32."""
    return Gap(
        code,
        lambda node: takes(node, WIDE),
        accept=accept,
        says=f"{what} performs its reduction in f32, exact to 2^24, and does not support "
        "32/64-bit integers",
    )


def _operator(
    op: Op,
    attrs: str,
    rule: Rule,
    result: _Result,
    *cases: Case,
    optional: str = "",
    gaps: tuple[Gap, ...] = (),
) -> Operator:
    def evaluate(run: Evaluator, node: Node, operands: list[Array]) -> Sequence[Array]:
        return (collective(node.op, node.attrs, operands[0], run.exchange),)

    _RESULTS[op] = result
    return Operator(
        op=op,
        kind=Kind.COLLECTIVE,
        engine=Engine.CC,
        cost=Cost.COLLECTIVE,
        attrs=names(attrs),
        optional=names("name channel") | names(optional),
        rule=rule,
        evaluate=evaluate,
        cases=lambda: cases,
        gaps=gaps,
    )


_RESULTS: dict[Op, _Result] = {}


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


_X, _ALONE = (tensor(DType.F32, 4, 2),), ((0,),)  # of cases: one rank, so that they run alone

# ---- all_reduce ---------------------------------------------------------------------------------


def all_reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    _check_kind(op, attrs, types[0])
    if attrs["group"]:  # (): all ranks, however many
        group_size(op, attrs)
    return types


def _reduce(attrs: Mapping[str, Any], _place: int, tensors: Sequence[Array]) -> Array:
    kind = attrs["kind"]
    dtype = from_numpy(tensors[0].dtype)
    combine = COMBINE["add" if kind == "avg" else kind]
    total = arithmetic(tensors[0])
    for other in tensors[1:]:
        total = combine(total, arithmetic(other))
    if kind == "avg" and np.issubdtype(total.dtype, np.integer):
        # Sums wrap as the type does before they are divided.
        total = np.asarray(cast(np.asarray(total), dtype))
        total = np.sign(total) * (np.abs(total) // total.dtype.type(len(tensors)))
    elif kind == "avg":
        total = total / total.dtype.type(len(tensors))
    return cast(np.asarray(total), dtype)


ALL_REDUCE = _operator(
    Op.ALL_REDUCE,
    "kind group",
    all_reduce_rule,
    _reduce,
    Case("", _X, {"kind": "add", "group": _ALONE}),
    Case("avg", _X, {"kind": "avg", "group": _ALONE, "channel": 1}),
    gaps=(_wide("NCC_EVRF061", "AllReduce", "all_reduce"),),
)

# ---- all_gather ---------------------------------------------------------------------------------


def all_gather_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension grows by the number of ranks in a group."""
    arity(op, types, 1)
    dim = check_dim(op, attrs, types[0].rank)
    return (_resized(types[0], dim, types[0].shape[dim] * group_size(op, attrs)),)


ALL_GATHER = _operator(
    Op.ALL_GATHER,
    "dim group",
    all_gather_rule,
    lambda attrs, _place, tensors: np.concatenate(tensors, attrs["dim"]),
    Case("", _X, {"dim": 0, "group": _ALONE}),
)

# ---- reduce_scatter -----------------------------------------------------------------------------


def reduce_scatter_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension is divided among the ranks of a group."""
    arity(op, types, 1)
    _check_kind(op, attrs, types[0])
    return (_split(op, types[0], check_dim(op, attrs, types[0].rank), group_size(op, attrs)),)


def _reduce_scatter(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    return np.split(_reduce(attrs, place, tensors), len(tensors), attrs["dim"])[place]


REDUCE_SCATTER = _operator(
    Op.REDUCE_SCATTER,
    "kind dim group",
    reduce_scatter_rule,
    _reduce_scatter,
    Case("", _X, {"kind": "add", "dim": 0, "group": _ALONE}),
    gaps=(_wide("NCC_EVRF063", "ReduceScatter", "reduce_scatter"),),
)

# ---- all_to_all; send, receive: uneven rows -----------------------------------------------------


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


def _all_to_all(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    parts = [np.split(t, len(tensors), attrs["split_dim"])[place] for t in tensors]
    return np.concatenate(parts, attrs["concat_dim"])


_ROWS = {"split_dim": 0, "concat_dim": 0, "send": (4,), "receive": (4,)}
ALL_TO_ALL = _operator(
    Op.ALL_TO_ALL,
    "split_dim concat_dim group",
    all_to_all_rule,
    _all_to_all,
    Case("", _X, {"split_dim": 0, "concat_dim": 1, "group": _ALONE}),
    Case("rows", _X, {**_ROWS, "group": _ALONE}),
    optional="send receive",
)

# ---- collective_broadcast; root: a place in the group -------------------------------------------


def broadcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    size, root = group_size(op, attrs) if attrs["group"] else 1, attrs["root"]
    if not 0 <= root < size:
        raise ShapeError(op, f"root {root} of a group of {size}")
    return types


COLLECTIVE_BROADCAST = _operator(
    Op.COLLECTIVE_BROADCAST,
    "root group",
    broadcast_rule,
    lambda attrs, _place, tensors: tensors[attrs["root"]],
    Case("", _X, {"root": 0, "group": _ALONE}),
)

# ---- collective_permute -------------------------------------------------------------------------


def permute_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """A rank sends to one and receives from one."""
    arity(op, types, 1)
    for side in zip(*attrs["pairs"], strict=True):
        if len(set(side)) != len(side):
            raise ShapeError(op, f"pairs {attrs['pairs']}; a rank sends and receives once")
    return types


def _permute(attrs: Mapping[str, Any], place: int, tensors: Sequence[Array]) -> Array:
    sources = [a for a, b in attrs["pairs"] if b == place]
    return tensors[sources[0]] if sources else np.zeros_like(tensors[place])


COLLECTIVE_PERMUTE = _operator(
    Op.COLLECTIVE_PERMUTE,
    "pairs",
    permute_rule,
    _permute,
    Case("", _X, {"pairs": ((0, 0),)}),
)

OPERATORS = (
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_PERMUTE,
)
