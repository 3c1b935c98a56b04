"""Conditionals by instructions: all branches are computed, and the selector takes one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.options import Options
from nki.device import lower

from .device_tools import check

TYPE = TensorType(DType.F32, (130, 40))
TRUTH, NUMBER = TensorType(DType.PRED, ()), TensorType(DType.S32, ())


def branch(name: str, *ops: Op) -> Graph:
    """Of (x, y): for each operator x <op> y."""
    x, y = parameter(0, TYPE), parameter(1, TYPE)
    return Graph(name, (x, y), tuple(build.binary(op, x, y) for op in ops))


def conditional(selector: TensorType, *branches: Graph) -> Graph:
    s, x, y = parameter(0, selector), parameter(1, TYPE), parameter(2, TYPE)
    types = tuple(result.type for result in branches[0].results)
    call = Node.make(Op.CONDITIONAL, types, (s, build.unary(Op.EXP, x), y), {"branches": branches})
    results = build.results(call)
    return Graph("test", (s, x, y), tuple(build.binary(Op.ADD, r, y) for r in results))


def arguments(selector: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.array(selector), *(rng.normal(size=TYPE.shape).astype(np.float32) for _ in "xy")]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_truth_takes_one_of_two(value: bool, count: int) -> None:
    ops = (Op.MULTIPLY, Op.SUBTRACT)[:count], (Op.ADD, Op.MAXIMUM)[:count]
    graph = conditional(TRUTH, branch("first", *ops[0]), branch("second", *ops[1]))
    program = check(graph, arguments(np.bool_(value)), floor=1.0)
    # With what is around them they are one pass.
    assert len(program.sections) == 1


@pytest.mark.parametrize("value", [-1, 0, 1, 2, 7])
def test_a_number_takes_one_of_several(value: int) -> None:
    graph = conditional(
        NUMBER, *(branch(op.value, op) for op in (Op.ADD, Op.MULTIPLY, Op.SUBTRACT))
    )
    check(graph, arguments(np.int32(value)), floor=1.0)


@pytest.mark.parametrize("values", [(True, True), (True, False), (False, True)])
def test_one_in_another(values: tuple[bool, bool]) -> None:
    s, x, y = parameter(0, TRUTH), parameter(1, TYPE), parameter(2, TYPE)
    inner = Node.make(
        Op.CONDITIONAL, (TYPE,), (s, x, y),
        {"branches": (branch("add", Op.ADD), branch("multiply", Op.MULTIPLY))},
    )  # fmt: skip
    first = Graph("inner", (s, x, y), (inner,))
    second = Graph("other", (s, x, y), (build.binary(Op.SUBTRACT, x, y),))
    outer = parameter(3, TRUTH)
    call = Node.make(Op.CONDITIONAL, (TYPE,), (outer, s, x, y), {"branches": (first, second)})
    graph = Graph("test", (s, x, y, outer), (call,))
    args = [*arguments(np.bool_(values[0])), np.array(values[1])]
    check(graph, args, floor=1.0)


def test_what_is_not_taken_may_be_nothing_at_all() -> None:
    """A quotient by zero that nobody takes is not in the result."""
    graph = conditional(TRUTH, branch("add", Op.ADD), branch("divide", Op.DIVIDE))
    args = arguments(np.array(1, np.bool_))
    args[2][:] = 0
    check(graph, args, floor=1.0)


def test_effects_stay_where_they_are_asked_for() -> None:
    x, y = parameter(0, TYPE), parameter(1, TYPE)
    drawn = Node.make(
        Op.CUSTOM_CALL, (TYPE,), (),
        {"target": "aten::rand.default", "args": (TYPE.shape,), "kwargs": (), "sequence": 0},
    )  # fmt: skip
    draws = Graph("draws", (x, y), (build.binary(Op.ADD, drawn, x),))
    program = lower(
        conditional(TRUTH, draws, branch("add", Op.ADD)), "trn2", Options(), passes=False
    )
    assert [section.operator for section in program.missing] == ["conditional"]
