"""The estimate of graphs by bytes and flops: what every time has to keep, on every target."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.table import TABLE
from neuronxcc.perf.graphs import (
    BY_BOUNDS,
    GraphParameters,
    Machine,
    Section,
    cost_of,
    host,
    parameters,
    rates,
    sections_of,
)
from neuronxcc.perf.graphs import collectives as collectives_table
from neuronxcc.perf.graphs.collectives import ERAS, Reach, collective_us, measured
from neuronxcc.perf.graphs.host import HostParameters
from neuronxcc.targets import TARGETS, Target, get_target

PAGE = Path(__file__).parents[2] / "docs" / "estimate.md"
FLOATS = (DType.F32, DType.BF16, DType.F16)
machines = st.sampled_from(
    [Machine.of(target, lnc) for target in TARGETS for lnc in target.supported_lnc]
)
extents = st.integers(1, 3000)


def dot(x: Node, w: Node) -> Node:
    return build.dot_general(x, w, lhs_contract=(1,), rhs_contract=(0,))


def total(sections: list[Section]) -> float:
    return sum(section.us for section in sections)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Some products, reductions and operators on elements, of random extents and types."""
    dtype = draw(st.sampled_from(FLOATS))
    rows, columns = draw(extents), draw(extents)
    x = parameter(0, TensorType(dtype, (rows, columns)))
    params, values = [x], [x]
    for _ in range(draw(st.integers(1, 8))):
        value = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(("dot", "exp", "add", "sum", "turn", "round")))
        if kind == "dot":
            width = draw(extents)
            weight = parameter(len(params), TensorType(dtype, (value.shape[1], width)))
            params.append(weight)
            made = dot(value, weight)
        elif kind == "exp":
            made = build.exp(value)
        elif kind == "add":
            made = build.add(value, value)
        elif kind == "round":
            made = build.convert(build.convert(value, DType.F32), dtype)
        elif kind == "turn":
            made = build.transpose(value, (1, 0))
        else:
            kept = build.reduce(value, "add", (1,))
            made = build.multiply(value, build.broadcast_in_dim(kept, value.shape, (0,)))
        values.append(made)
    return build.graph("random", params, [values[-1]])


@given(graphs(), machines)
def test_a_section_takes_its_busiest_engine_at_least_and_all_of_them_at_most(
    graph: Graph, machine: Machine
) -> None:
    for section in sections_of(graph, machine):
        busiest = max(section.busy.values(), default=0.0)
        assert busiest <= section.us <= sum(section.busy.values()) + section.latency_us + 1e-9
        assert section.how == BY_BOUNDS
        assert sum(section.shares(machine)) == pytest.approx(1)


@given(graphs(), machines)
def test_memory_is_never_faster_than_its_limit(graph: Graph, machine: Machine) -> None:
    core = machine.target.core
    engines = core.dma_engines * core.dma_engine_gbps * machine.lnc
    for section in sections_of(graph, machine):
        moved = section.read + section.written
        assert moved <= section.us * min(engines, machine.hbm_gbps) * 1e3 * (1 + 1e-9) + 1


@given(graphs(), machines)
def test_products_are_never_faster_than_the_peak(graph: Graph, machine: Machine) -> None:
    for section in sections_of(graph, machine):
        for cost in section.nodes:
            assert 0 <= cost.filled <= 1
        if section.flops:
            dtype = next(c.node.srcs[0].dtype for c in section.nodes if c.flops)
            # The printed peaks are rounded: 79 for 78.6.
            assert section.flops <= section.us * machine.peak_tflops(dtype) * 1e6 * 1.02


@given(graphs(), machines)
def test_what_a_result_needs_is_read_and_the_result_is_written(
    graph: Graph, machine: Machine
) -> None:
    sections = sections_of(graph, machine)
    (result,) = graph.results
    needed = {node for node in graph.nodes() if node.op is Op.PARAMETER}
    if result.op is not Op.PARAMETER and sections:
        assert sum(s.read for s in sections) >= sum(node.type.nbytes for node in needed)
        assert sum(s.written for s in sections) >= result.type.nbytes


@given(machines, extents, extents, extents, st.integers(1, 500), st.sampled_from(FLOATS))
def test_products_take_longer_the_larger_they_are(
    machine: Machine, m: int, k: int, n: int, more: int, dtype: DType
) -> None:
    base = machine.product_us(1, m, k, n, dtype)
    assert base > 0
    assert base <= machine.product_us(1, m + more, k, n, dtype)
    assert base <= machine.product_us(1, m, k + more, n, dtype)
    assert base <= machine.product_us(1, m, k, n + more, dtype)
    assert base <= machine.product_us(1 + more, m, k, n, dtype)
    assert machine.product_us(1, m, k, n, DType.F32) >= base


@given(machines, st.sampled_from(("vector", "scalar", "gpsimd")), extents, st.integers(0, 500))
def test_engines_take_longer_for_more_elements_and_64_cycles_at_least(
    machine: Machine, engine: str, elements: int, more: int
) -> None:
    base = machine.lanes_us(engine, elements, 1, DType.F32)
    assert base <= machine.lanes_us(engine, elements + more, 1, DType.F32)
    assert base >= 64 / machine.spec(engine).clock_ghz / 1e3


@given(st.sampled_from(TARGETS), st.integers(1, 9), st.integers(1, 9))
def test_a_graph_of_more_rows_takes_no_less(target: Target, rows: int, more: int) -> None:
    def time(count: int) -> float:
        x = parameter(0, TensorType(DType.BF16, (count * 100, 700)))
        w = parameter(1, TensorType(DType.BF16, (700, 900)))
        graph = build.graph("g", [x, w], [build.exp(dot(x, w))])
        return total(sections_of(graph, Machine.of(target)))

    assert time(rows) <= time(rows + more)


def test_a_chain_on_elements_goes_through_memory_once() -> None:
    machine = Machine.of(get_target("trn1"))
    x = parameter(0, TensorType(DType.F32, (4096, 4096)))
    (section,) = sections_of(build.graph("g", [x], [build.exp(build.exp(x))]), machine)
    assert (section.read, section.written) == (4096 * 4096 * 4, 4096 * 4096 * 4)
    assert section.bound_by == "dma"


def test_a_product_of_known_size() -> None:
    # 2 x 4096^3 at 2 x 128 x 128 x 2.8 GHz.
    machine = Machine.of(get_target("trn1"), graph=GraphParameters(product_efficiency=1.0))
    assert machine.product_us(1, 4096, 4096, 4096, DType.BF16) == pytest.approx(1497.97, rel=1e-4)
    # Half of what is summed over, or fewer than 64 columns, take as long as a whole tile.
    tile = machine.product_us(1, 128, 128, 64, DType.BF16)
    assert machine.product_us(1, 128, 64, 64, DType.BF16) == tile
    assert machine.product_us(1, 128, 128, 1, DType.BF16) == machine.product_us(
        1, 1, 128, 128, DType.BF16
    )
    assert tile == pytest.approx(64 / 2.8e3)


def test_weights_are_turned_around_once_and_activations_every_time() -> None:
    machine = Machine.of(get_target("trn1"))
    x = parameter(0, TensorType(DType.BF16, (512, 512)))
    w = parameter(1, TensorType(DType.BF16, (512, 512)))
    graph = build.graph("g", [x, w], [dot(x, build.transpose(w, (1, 0)))])
    kinds = [c.kind for s in sections_of(graph, machine, constant_params={1}) for c in s.nodes]
    assert kinds == ["product"]
    kinds = [c.kind for s in sections_of(graph, machine, constant_params=()) for c in s.nodes]
    assert sorted(kinds) == ["product", "transpose"]


def test_a_gather_of_short_rows_costs_more_than_its_bytes() -> None:
    machine = Machine.of(get_target("trn2"))
    assert machine.rows_us(100, 4096) == pytest.approx(machine.dma_us(100 * 4096))
    assert machine.rows_us(6400, 64) > 5 * machine.dma_us(6400 * 64)
    assert machine.rows_us(100, 64) < machine.rows_us(100, 2048) < machine.rows_us(100, 4096)


def test_every_operator_has_a_class() -> None:
    known = {*rates.RATES, rates.FREE, "product", "rows", "attention", "host", "collective"}
    for operator in TABLE.values():
        for case in operator.cases():
            if operator.rule is None or case.attrs is None:
                continue
            params = [parameter(i, t) for i, t in enumerate(case.types)]
            try:
                types = operator.rule(operator.op, case.types, case.attrs)
            except ShapeError:  # cases are of every type, and each operator takes some
                continue
            node = Node.make(operator.op, types, params, case.attrs)
            assert rates.class_of(node) in known, operator.op
            cost = cost_of(node, Machine.of(get_target("trn2")))
            assert all(us >= 0 for us in (*cost.busy.values(), *cost.either.values()))


# Collectives and the host.


def reach(ranks: int, target: Target) -> Reach:
    cores = target.logical_cores_per_chip(target.default_lnc)
    chips = -(-ranks // cores)
    return Reach(ranks, chips, 1, min(ranks, cores), ranks, cores, cores * 16, 800)


@given(
    st.sampled_from(TARGETS),
    st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv")),
    st.sampled_from((2, 8, 32)),
    st.integers(0, 1 << 28),
    st.integers(0, 1 << 28),
    st.sampled_from([era for era in ERAS if era != "measured"]),
)
def test_collectives_take_longer_for_more_bytes_of_one_algorithm(
    target: Target, kind: str, ranks: int, size: int, more: int, era: str
) -> None:
    def us(nbytes: int) -> float:
        found = collective_us(kind, nbytes, reach(ranks, target), target, era=era, floor_us=50)
        assert found is not None
        return found

    assert 0 < us(size) <= us(size + more)
    assert us(size) >= (50 if era == "models" else 0)


def test_one_rank_waits_for_nobody() -> None:
    target = get_target("trn2")
    assert collective_us("all_reduce", 1 << 20, reach(1, target), target) == 0


def test_a_network_that_is_not_published_has_no_time() -> None:
    target = get_target("inf2")
    where = Reach(64, 32, 2, 2, 32, 2, 32, None)
    assert collective_us("all_reduce", 1 << 20, where, target) is None


def test_the_examples_of_nccom_test_are_met_where_there_is_one() -> None:
    found = measured("all_gather", 32, 1)
    assert found is not None
    assert (found.era, found.us(8192)) == ("newer", 6.48)
    # Between two sizes on the line, beyond the last at its rate.
    assert found.us(65536 + (524288 - 65536) // 2) == pytest.approx((8.17 + 23.16) / 2)
    assert found.us(2 * 524288) == pytest.approx(2 * 23.16)
    target = get_target("trn1")
    assert collective_us("all_gather", 8192, reach(32, target), target, era="measured") == 6.48
    assert measured("all_gather", 5, 1) is None


def test_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="product_efficiency is 0: give more than 0, at most 1"):
        GraphParameters(product_efficiency=0)
    with pytest.raises(ValueError, match="section_gap is -1: give 0 or more"):
        GraphParameters(section_gap=-1)
    with pytest.raises(ValueError, match="copy_gbps is 0: give more"):
        HostParameters(copy_gbps=0)
    with pytest.raises(ValueError, match=r"trn1 supports LNC \(1,\), got 2"):
        Machine.of(get_target("trn1"), 2)


@pytest.mark.parametrize("module", [parameters, rates, host, collectives_table])
def test_the_page_has_the_tables(module: object) -> None:
    assert module.markdown() in PAGE.read_text()  # type: ignore[attr-defined]


def test_a_larger_group_of_cores_is_no_slower() -> None:
    target = get_target("trn2")
    x = parameter(0, TensorType(DType.BF16, (512, 4096)))
    w = parameter(1, TensorType(DType.BF16, (4096, 4096)))
    graph = build.graph("g", [x, w], [dot(x, w)])
    assert total(sections_of(graph, Machine.of(target, 2))) <= total(
        sections_of(graph, Machine.of(target, 1))
    )


def kinds_that_work(graph: Graph) -> list[str]:
    machine = Machine.of(get_target("trn1"))
    return [c.kind for s in sections_of(graph, machine) for c in s.nodes if c.works]


def test_an_instruction_takes_numbers_along() -> None:
    x = parameter(0, TensorType(DType.F32, (512, 512)))
    number = build.splat(2.0, x.type)

    def scaled(value: Node) -> Node:
        return build.multiply(value, number)

    # activation: a factor and a summand; a third operation is an instruction of its own.
    one = build.graph("g", [x], [build.exp(build.add(scaled(x), number))])
    assert kinds_that_work(one) == ["function"]
    more = build.graph("g", [x], [build.exp(build.maximum(build.add(scaled(x), number), number))])
    assert kinds_that_work(more) == [rates.NUMBERS, "function"]
    # scalar_tensor_tensor takes one.
    both = build.graph("g", [x], [build.add(scaled(x), build.exp(x))])
    assert kinds_that_work(both) == ["function", "arithmetic of tensors"]
    # What somebody else reads, too, is computed.
    kept = scaled(x)
    read = build.graph("g", [x], [build.exp(kept), kept])
    assert kinds_that_work(read) == [rates.NUMBERS, "function"]


def test_vector_and_scalar_share_what_both_may_do() -> None:
    x = parameter(0, TensorType(DType.F32, (4096, 4096)))
    number = build.splat(2.0, x.type)
    values = [
        build.multiply(build.maximum(x, build.splat(float(i), x.type)), number) for i in range(6)
    ]
    graph = build.graph("g", [x], values)
    (section,) = sections_of(graph, Machine.of(get_target("trn1")))
    vector, scalar = section.busy["vector"], section.busy["scalar"]
    assert max(vector, scalar) < 2 * min(vector, scalar)
