"""Simplification keeps every bit: NaN, infinities, signed zeros, denormals, wrapping integers."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, seed, settings

from neuronxcc.ir import DType, Graph
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.verify import verify
from neuronxcc.passes import canonical, pipeline, run
from neuronxcc.passes.rules import RulePass
from tests.compiler.graphs import FAMILIES, Case, graphs, same_bits
from tests.compiler.ir_samples import samples


@dataclass(frozen=True)
class Casts:
    """The options that passes read."""

    auto_cast: str = "none"
    auto_cast_type: str = "bf16"
    stochastic_rounding: bool = False
    optlevel: int = 2
    enable_mixed_precision_accumulation: bool = True


def check(case: Case) -> None:
    simplified = run(case.graph, Casts(), verify_all=True)
    assert simplified.params == case.graph.params
    before, after = evaluate(case.graph, case.args), evaluate(simplified, case.args)
    for old, new in zip(before, after, strict=True):
        assert same_bits(old, new), (old, new)


@given(graphs())
@settings(max_examples=300)
def test_random_graphs_keep_their_bits(case: Case) -> None:
    check(case)


@given(graphs(families=["elementwise"], dtypes=[DType.F32, DType.S32, DType.PRED], steps=12))
@settings(max_examples=200)
def test_elementwise_graphs_keep_their_bits(case: Case) -> None:
    check(case)


@pytest.mark.slow
@given(graphs(families=["movement", "elementwise"], dtypes=[DType.F32, DType.BF16], steps=12))
@settings(max_examples=200)
def test_movement_keeps_its_bits(case: Case) -> None:
    check(case)


@given(graphs(families=["gather", "movement"], dtypes=[DType.S32, DType.S64, DType.F32], steps=10))
@settings(max_examples=100)
def test_indices_keep_their_bits(case: Case) -> None:
    check(case)


@pytest.mark.slow
@given(graphs(families=["redundant", "elementwise", "movement"], steps=6))
@settings(max_examples=500)
def test_redundant_graphs_keep_their_bits(case: Case) -> None:
    check(case)


@given(graphs(families=["redundant", *FAMILIES]))
def test_simplifying_again_changes_nothing(case: Case) -> None:
    once = run(case.graph, Casts())
    fired: Counter[str] = Counter()
    again = RulePass(pipeline.SIMPLIFY, fired)(once)
    assert again.results == once.results
    assert not fired


@pytest.mark.parametrize("family", sorted({s.name.split()[0] for s in samples()}))
def test_samples_keep_their_bits(family: str) -> None:
    for sample in samples():
        if sample.name.split()[0] == family:
            check(Case(sample.graph, sample.args))


@pytest.mark.slow
def test_random_graphs_reach_nearly_every_rule() -> None:
    fired: Counter[str] = Counter()
    simplify = RulePass(pipeline.SIMPLIFY, fired)

    # hypothesis draws constants from the modules that are loaded, so what one round finds
    # depends on the other tests of the process.
    rules = {entry.name for entry in pipeline.SIMPLIFY}
    for number in range(4):

        @seed(number)
        @given(graphs(families=["redundant"], steps=6))
        @settings(max_examples=500, database=None)
        def collect(case: Case) -> None:
            simplify(case.graph)

        collect()
        if len(fired) > 0.8 * len(rules):
            return
    raise AssertionError(f"never seen: {sorted(rules - set(fired))}")


def test_canonical_rules_alone_are_valid() -> None:
    simplify = RulePass(canonical.RULES)

    @given(graphs(families=["movement", "reduction", "sorting"]))
    def inner(case: Case) -> None:
        graph: Graph = simplify(case.graph)
        verify(graph)
        for old, new in zip(
            evaluate(case.graph, case.args), evaluate(graph, case.args), strict=True
        ):
            assert same_bits(np.asarray(old), np.asarray(new))

    inner()
