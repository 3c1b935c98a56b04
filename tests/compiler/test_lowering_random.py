"""Random graphs: a program computes what the IR means."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from neuronxcc.ir import DType
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.lowering_tools import expected, run

SLOW = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def check_bits(case: Case) -> None:
    got = run(case.graph, case.args)
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
