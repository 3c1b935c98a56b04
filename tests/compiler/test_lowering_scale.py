"""Lowering takes time in proportion to the graph."""

from __future__ import annotations

import time

from neuronxcc.ir import DType, Graph, build
from neuronxcc.lowering import lower
from neuronxcc.lowering.preparation.rewrites import prepare
from neuronxcc.options import Options

from .lowering_models import Model, decoder


def seconds(graph: Graph) -> float:
    """Processor time of lowering, the better of two."""
    found = []
    for _ in range(2):
        start = time.process_time()
        lower(graph, Options())
        found.append(time.process_time() - start)
    return min(found)


def test_time_grows_with_the_number_of_layers() -> None:
    times = {layers: seconds(decoder(layers)) for layers in (12, 24, 48)}
    # In proportion would be 2 and 4; half as much again for the clock of a busy machine.
    assert times[24] < 3 * times[12]
    assert times[48] < 6 * times[12]


def test_a_long_chain_is_no_deep_recursion() -> None:
    m = Model()
    x = y = m.param(8)
    for _ in range(3000):
        y = build.add(build.multiply(y, x), 1.0)
    program = lower(m.graph("chain", y), Options())
    assert 20 < len(program.steps) < 200  # kernels are of limited size


def test_many_independent_results_are_quick() -> None:
    m = Model()
    results = [build.tanh(m.param(16)) for _ in range(1000)]
    assert seconds(m.graph("wide", *results)) < 5


def test_what_is_prepared_stays_the_same_graph() -> None:
    m = Model()
    graph = m.graph("g", build.exp(m.param(4)))
    assert prepare(graph).results == graph.results
    half = build.reduce(build.convert(m.param(4), DType.BF16), "add")
    assert prepare(m.graph("h", half)).results[0].srcs[0].dtype is DType.F32
