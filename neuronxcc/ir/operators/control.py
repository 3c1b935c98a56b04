"""Control flow: operators whose attributes hold graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Literal, Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import Attrs, ShapeError, Types
from neuronxcc.ir.operators.definition import (
    Case,
    Cost,
    Evaluator,
    Kind,
    Operator,
    names,
    tensor,
)
from neuronxcc.targets import Engine


def _signature(graph: Any) -> tuple[Types, Types]:
    return tuple(p.type for p in graph.params), tuple(r.type for r in graph.results)


def _takes(op: Op, graph: Any, types: Types) -> Types:
    params, results = _signature(graph)
    if params != types:
        given, wanted = (", ".join(map(str, t)) for t in (types, params))
        raise ShapeError(op, f"operands ({given}); {graph.name!r} takes ({wanted})")
    return results


# The graphs of cases.
_VECTOR, _NUMBER, _TRUTH = tensor(DType.F32, 4), tensor(DType.S64), tensor(DType.PRED)


def _double(op: Op) -> Graph:
    x = parameter(0, _VECTOR)
    return Graph(op.value, (x,), (Node.make(op, _VECTOR, (x, x), {}),))


# ---- while: the operands are the first state ----------------------------------------------------


def while_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The body maps the state to a state, the condition to a pred."""
    if _takes(op, attrs["cond"], types) != (TensorType(DType.PRED),):
        raise ShapeError(op, f"cond {attrs['cond'].name!r} must return one pred[]")
    if _takes(op, attrs["body"], types) != types:
        raise ShapeError(op, f"body {attrs['body'].name!r} must return the types of the state")
    return types


def _while(run: Evaluator, node: Node, state: list[Array]) -> Sequence[Array]:
    while run.run(node["cond"], state)[0]:
        state = run.run(node["body"], state)
    return state


def _loops() -> Iterable[Case]:
    """Doubles a vector, and its count, while that is between 0 and 8."""
    x, n = parameter(0, _VECTOR), parameter(1, _NUMBER)

    def number(value: int) -> Node:
        literal = Literal(np.array(value, np.int64))
        return Node.make(Op.CONSTANT, _NUMBER, (), {"literal": literal})

    def compare(a: Node, b: Node, direction: str) -> Node:
        return Node.make(Op.COMPARE, _TRUTH, (a, b), {"direction": direction})

    inside = (compare(n, number(8), "LT"), compare(n, number(0), "GT"))
    cond = Graph("more", (x, n), (Node.make(Op.AND, _TRUTH, inside, {}),))
    twice = (Node.make(Op.ADD, p.type, (p, p), {}) for p in (x, n))
    body = Graph("step", (x, n), tuple(twice))
    yield Case("", (_VECTOR, _NUMBER), {"cond": cond, "body": body})


WHILE = Operator(
    op=Op.WHILE,
    kind=Kind.CONTROL,
    engine=Engine.NONE,
    cost=Cost.NESTED,
    attrs=names("cond body"),
    rule=while_rule,
    evaluate=_while,
    cases=_loops,
)

# ---- conditional: the first operand selects -----------------------------------------------------


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


def _conditional(run: Evaluator, node: Node, operands: list[Array]) -> Sequence[Array]:
    selector, *rest = operands
    branches = node["branches"]
    number = int(not selector) if selector.dtype == np.bool_ else int(selector)
    inside = 0 <= number < len(branches)
    return run.run(branches[number if inside else len(branches) - 1], rest)


def _branches() -> Iterable[Case]:
    branches = (_double(Op.ADD), _double(Op.MULTIPLY))
    yield Case("", (_TRUTH, _VECTOR), {"branches": branches})


CONDITIONAL = Operator(
    op=Op.CONDITIONAL,
    kind=Kind.CONTROL,
    engine=Engine.NONE,
    cost=Cost.NESTED,
    attrs=names("branches"),
    rule=conditional_rule,
    evaluate=_conditional,
    cases=_branches,
)

# ---- call ---------------------------------------------------------------------------------------


def call_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The results of the body."""
    return _takes(op, attrs["body"], types)


CALL = Operator(
    op=Op.CALL,
    kind=Kind.CONTROL,
    engine=Engine.NONE,
    cost=Cost.NESTED,
    attrs=names("body"),
    rule=call_rule,
    evaluate=lambda run, node, operands: run.run(node["body"], operands),
    cases=lambda: (Case("", (_VECTOR,), {"body": _double(Op.ADD)}),),
)

OPERATORS = (WHILE, CONDITIONAL, CALL)
