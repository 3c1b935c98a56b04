"""Rules of control flow and calls."""

from __future__ import annotations

from typing import Any

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import Attrs, ShapeError, Types


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
