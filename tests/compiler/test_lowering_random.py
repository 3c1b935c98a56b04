"""Random graphs: a program computes what the IR means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronxcc.ir import DType, Node
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.lowering_tools import expected, run

SLOW = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def strides_of(shape: tuple[int, ...], order: list[int], gap: int) -> tuple[int, ...]:
    """Strides that put the dimensions in memory in that order, with gaps between elements."""
    strides = [0] * len(shape)
    step = gap
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


@st.composite
def layouts(draw: Callable[..., Any], nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    """Strides for tensors: any order of dimensions, some with gaps."""
    orders = [list(draw(st.permutations(range(node.type.rank)))) for node in nodes]
    return [
        strides_of(node.shape, order, draw(st.sampled_from((1, 1, 3))))
        for node, order in zip(nodes, orders, strict=True)
    ]


def check_bits(case: Case, **layouts: Any) -> None:
    got = run(case.graph, case.args, **layouts)
    wanted = expected(case.graph, case.args)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert same_bits(np.asarray(a), np.asarray(b)), f"result {number}: {a} is not {b}"


@SLOW
@given(graphs(families=["elementwise", "movement", "gather"], steps=10))
def test_what_is_not_summed_is_equal_in_all_bits(case: Case) -> None:
    check_bits(case)


@SLOW
@given(graphs(exact=True, steps=12))
def test_exact_arithmetic_is_equal_in_all_bits(case: Case) -> None:
    check_bits(case)


@SLOW
@given(
    graphs(families=["contraction", "movement", "elementwise"], dtypes=[DType.F32], exact=True),
    st.data(),
)
def test_products_and_what_follows(case: Case, data: st.DataObject) -> None:
    check_bits(case, result_strides=data.draw(layouts(case.graph.results)))


@SLOW
@given(
    graphs(families=["reduction", "elementwise", "movement"], dtypes=[DType.F32], exact=True),
    st.data(),
)
def test_reductions_and_what_follows(case: Case, data: st.DataObject) -> None:
    check_bits(case, result_strides=data.draw(layouts(case.graph.results)))


@pytest.mark.slow
@SLOW
@given(graphs(exact=True, steps=8), st.data())
def test_any_strides_of_parameters_and_results(case: Case, data: st.DataObject) -> None:
    check_bits(
        case,
        param_strides=data.draw(layouts(case.graph.params)),
        result_strides=data.draw(layouts(case.graph.results)),
    )
