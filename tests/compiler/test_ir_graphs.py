"""Random graphs are valid, print and parse to themselves; every sample of the table too."""

import collections

import pytest
from hypothesis import given, settings

from neuronxcc.ir import Node, Op
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import TABLE
from neuronxcc.ir.text import parse, to_text
from neuronxcc.ir.verify import called_graphs, verify
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.ir_samples import Sample, samples


@given(graphs())
def test_random_graphs_are_valid_and_evaluate(case: Case) -> None:
    verify(case.graph)
    results = evaluate(case.graph, case.args)
    assert [r.shape for r in results] == [node.shape for node in case.graph.results]


def _calls(nodes: list[Node]) -> bool:
    return any(called_graphs(node) for node in nodes)


@given(graphs())
def test_text_round_trips(case: Case) -> None:
    text = to_text(case.graph)
    again = parse(text)
    verify(again)
    assert to_text(again) == text
    assert again.aliases == case.graph.aliases
    if not _calls(list(case.graph.nodes())):  # graphs are compared by identity
        assert again.results == case.graph.results


@given(graphs(exact=True))
@settings(max_examples=30)
def test_exact_graphs_give_the_same_bits_again(case: Case) -> None:
    first, second = evaluate(case.graph, case.args), evaluate(case.graph, case.args)
    assert all(map(same_bits, first, second))


SAMPLES: dict[Op, list[Sample]] = collections.defaultdict(list)
for _sample in samples():
    _node = _sample.graph.results[0]
    SAMPLES[_node.srcs[0].op if _node.op is Op.GET else _node.op].append(_sample)


@pytest.mark.parametrize("op", SAMPLES, ids=lambda op: op.value)
def test_samples_are_valid_evaluate_and_round_trip(op: Op) -> None:
    for sample in SAMPLES[op]:
        verify(sample.graph)
        evaluate(sample.graph, sample.args)
        text = to_text(sample.graph)
        assert to_text(parse(text)) == text


def test_every_operator_has_a_complete_entry() -> None:
    unsampled = {Op.GET, Op.CUSTOM_CALL, Op.HOST_CALL}
    given_types = unsampled | {Op.PARAMETER, Op.IOTA}
    evaluated = {Op.PARAMETER, Op.WHILE, Op.CONDITIONAL, Op.CALL, *unsampled}
    for op in Op:
        entry = TABLE[op]
        assert op in SAMPLES or op in unsampled, op
        assert (entry.rule is None) == (op in given_types), op
        if entry.meaning is None:
            assert op in evaluated or op.value.startswith(("all_", "reduce_sc", "collective")), op


@pytest.mark.slow
def test_strategy_reaches_every_family() -> None:
    seen: set[Op] = set()

    @given(graphs())
    @settings(max_examples=400, database=None, derandomize=True)
    def collect(case: Case) -> None:
        seen.update(node.op for node in case.graph.nodes())

    collect()
    wanted = {Op.ADD, Op.CONVERT, Op.TRANSPOSE, Op.RESHAPE, Op.REDUCE, Op.DOT_GENERAL, Op.GATHER}
    wanted |= {Op.SCATTER, Op.SORT, Op.CALL, Op.SELECT, Op.PAD, Op.DYNAMIC_SLICE, Op.ARG_REDUCE}
    assert wanted <= seen
