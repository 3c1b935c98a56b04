"""Rules of control flow, calls and collectives."""

from __future__ import annotations

from typing import Any

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    REDUCE_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
    check_kind,
)


def _signature(graph: Any) -> tuple[Types, Types]:
    return tuple(p.type for p in graph.params), tuple(r.type for r in graph.results)


def _takes(op: Op, graph: Any, types: Types) -> Types:
    params, results = _signature(graph)
    if params != types:
        given, wanted = (", ".join(map(str, t)) for t in (types, params))
        raise ShapeError(op, f"operands ({given}); {graph.name!r} takes ({wanted})")
    return results


def while_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The body maps the state to a state, the condition to a pred."""
    if _takes(op, attrs["cond"], types) != (TensorType(DType.PRED),):
        raise ShapeError(op, f"cond {attrs['cond'].name!r} must return one pred[]")
    if _takes(op, attrs["body"], types) != types:
        raise ShapeError(op, f"body {attrs['body'].name!r} must return the types of the state")
    return types


def conditional_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """All branches take the operands and return the same types."""
    selector, *operands = types
    branches = attrs["branches"]
    if selector not in (TensorType(DType.PRED), TensorType(DType.S32)) or not branches:
        raise ShapeError(op, f"selector {selector}, {len(branches)} branches; need pred[] or s32[]")
    if selector.dtype is DType.PRED and len(branches) != 2:
        raise ShapeError(op, f"a pred selects between 2 branches, got {len(branches)}")
    results = [_takes(op, branch, tuple(operands)) for branch in branches]
    if any(r != results[0] for r in results):
        raise ShapeError(op, "branches return different types")
    return results[0]


def call_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The results of the body."""
    return _takes(op, attrs["body"], types)


def group_size(op: Op, attrs: Attrs) -> int:
    """Number of ranks in each group; groups partition the ranks and are of one size."""
    groups = attrs["group"]
    ranks = [rank for group in groups for rank in group]
    if not ranks or len(set(ranks)) != len(ranks) or len({len(g) for g in groups}) != 1:
        raise ShapeError(op, f"group {groups}; need disjoint groups of ranks, of one size")
    return len(groups[0])


def _resized(t: TensorType, dim: int, extent: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:dim], extent, *t.shape[dim + 1 :]))


def all_reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    check_kind(op, attrs, REDUCE_KINDS, types[0].dtype)
    group_size(op, attrs)
    return types


def all_gather_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension grows by the number of ranks in a group."""
    arity(op, types, 1)
    dim = check_dim(op, attrs, types[0].rank)
    return (_resized(types[0], dim, types[0].shape[dim] * group_size(op, attrs)),)


def _split(op: Op, t: TensorType, dim: int, size: int) -> TensorType:
    if t.shape[dim] % size:
        raise ShapeError(op, f"dim {dim} of {t} does not divide among {size} ranks")
    return _resized(t, dim, t.shape[dim] // size)


def reduce_scatter_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension is divided among the ranks of a group."""
    arity(op, types, 1)
    check_kind(op, attrs, REDUCE_KINDS, types[0].dtype)
    return (_split(op, types[0], check_dim(op, attrs, types[0].rank), group_size(op, attrs)),)


def all_to_all_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """One dimension is divided, the other grows."""
    arity(op, types, 1)
    size = group_size(op, attrs)
    part = _split(op, types[0], check_dim(op, attrs, types[0].rank, "split_dim"), size)
    dim = check_dim(op, attrs, part.rank, "concat_dim")
    return (_resized(part, dim, part.shape[dim] * size),)


def permute_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """A rank sends to one and receives from one."""
    arity(op, types, 1)
    for side in zip(*attrs["pairs"], strict=True):
        if len(set(side)) != len(side):
            raise ShapeError(op, f"pairs {attrs['pairs']}; a rank sends and receives once")
    return types
