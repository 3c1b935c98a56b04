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


def loop(bound: Node | int, first: Node | int = 0, *, by: int = 1) -> Graph:
    """While n < bound: x = x * 0.5 + y * n, n += by; the loop returns x, y, n and the bound."""
    x, y = parameter(0, TYPE), parameter(1, TYPE)
    n, most = parameter(2, NUMBER), parameter(3, NUMBER)
    cond = Graph("cond", (x, y, n, most), (build.compare(n, most, "LT"),))
    scaled = build.binary(
        Op.MULTIPLY, y, build.broadcast_to(build.convert(n, DType.F32), TYPE.shape)
    )
    half = build.binary(Op.MULTIPLY, x, 0.5)
    results = (build.binary(Op.ADD, half, scaled), y, build.binary(Op.ADD, n, by), most)
    body = Graph("body", (x, y, n, most), results)
    given = [parameter(0, TYPE), parameter(1, TYPE)]
    numbers = [
        build.constant(one, DType.S32) if isinstance(one, int) else one for one in (first, bound)
    ]
    params = [*given, *(one for one in numbers if one.op is Op.PARAMETER)]
    call = Node.make(
        Op.WHILE, (TYPE, TYPE, NUMBER, NUMBER), (*given, *numbers), {"cond": cond, "body": body}
    )
    return Graph("test", tuple(params), build.results(call))


@pytest.mark.parametrize(("bound", "first", "by"), [(5, 0, 1), (0, 0, 1), (9, -3, 4), (1, 0, 7)])
def test_a_loop_that_is_counted_is_written_out(bound: int, first: int, by: int) -> None:
    check(loop(bound, first, by=by), arguments(0)[1:], floor=1.0)


def test_a_loop_in_a_branch() -> None:
    s, x, y = parameter(0, TRUTH), parameter(1, TYPE), parameter(2, TYPE)
    inner = loop(3)
    first = Graph("loop", inner.params, inner.results[:1])
    call = Node.make(
        Op.CONDITIONAL, (TYPE,), (s, x, y), {"branches": (first, branch("add", Op.ADD))}
    )
    for value in (0, 1):
        check(Graph("test", (s, x, y), (call,)), arguments(np.array(value, np.bool_)), floor=1.0)


@pytest.mark.parametrize("graph", [loop(parameter(2, NUMBER)), loop(65), loop(3, by=0)])
def test_loops_that_are_not_counted_stay(graph: Graph) -> None:
    """A value says how long, it is too long, or it does not end."""
    program = lower(graph, "trn2", Options(), passes=False)
    assert "while" in [section.operator for section in program.missing]
