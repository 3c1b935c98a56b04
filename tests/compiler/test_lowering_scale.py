"""The work of lowering is in proportion to the graph."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from neuronxcc.ir import DType, Graph, build
from neuronxcc.lowering import lower
from neuronxcc.lowering.preparation.rewrites import prepare
from neuronxcc.options import Options

from .lowering_models import Model, decoder


def work(graph: Graph) -> int:
    """How many functions lowering calls, which a busy machine does not change."""
    lower(graph, Options())  # what is worked out once is not counted
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        lower(graph, Options())
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.slow
def test_work_grows_with_the_number_of_layers() -> None:
    calls = {layers: work(decoder(layers)) for layers in (12, 24, 48)}
    # In proportion would be 2 and 4.
    assert calls[24] < 2.2 * calls[12]
    assert calls[48] < 4.4 * calls[12]


def test_a_long_chain_is_no_deep_recursion() -> None:
    m = Model()
    x = y = m.param(8)
    for _ in range(3000):
        y = build.add(build.multiply(y, x), 1.0)
    program = lower(m.graph("chain", y), Options())
    assert 20 < len(program.steps) < 200  # kernels are of limited size


@pytest.mark.slow
def test_many_independent_results_are_quick() -> None:
    def wide(count: int) -> Graph:
        m = Model()
        return m.graph("wide", *[build.tanh(m.param(16)) for _ in range(count)])

    assert work(wide(1000)) < 2.2 * work(wide(500))


def test_what_is_prepared_stays_the_same_graph() -> None:
    m = Model()
    graph = m.graph("g", build.exp(m.param(4)))
    assert prepare(graph).results == graph.results
    half = build.reduce(build.convert(m.param(4), DType.BF16), "add")
    assert prepare(m.graph("h", half)).results[0].srcs[0].dtype is DType.F32
