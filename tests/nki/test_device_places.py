"""Gathers at places that constants say: runs of equal steps, and what copies them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.places import Line, patterns_of, places_of, runs_of
from neuronxcc.perf.graphs.machine import Machine
from neuronxcc.perf.graphs.rates import cost_of
from neuronxcc.targets import get_target

from .device_tools import arguments, check, compiled, given_, graph_of

PLACES = st.lists(st.integers(-2, 8), min_size=1, max_size=24)


@given(PLACES)
def test_runs_are_the_places(places: list[int]) -> None:
    found: list[int | None] = [None] * len(places)
    for run in runs_of(tuple(places)):
        for i in range(run.size):
            at = run.begin + run.stride * i
            assert found[at] is None
            found[at] = run.first + run.step * i
    assert found == places


@pytest.mark.parametrize(
    ("size", "wanted", "most"), [(32, 64, 2), (64, 32, 1), (14, 20, 7), (7, 50, 8), (64, 512, 8)]
)
def test_an_interpolation_has_few_runs(size: int, wanted: int, most: int) -> None:
    places = tuple(i * size // wanted for i in range(wanted))
    assert len(runs_of(places)) <= most


def gathered(x: Node, dims: tuple[int, ...], places: list[list[int]]) -> Node:
    """Elements of x at a grid of places, one axis for each of these dimensions, which stays there.

    The dimensions between the first and the last are all gathered.
    """
    vectors = np.stack(np.meshgrid(*map(np.asarray, places), indexing="ij"), -1)
    kept = [d for d in range(x.type.rank) if d not in dims]
    indices = build.constant(vectors, DType.S64)
    return build.make(
        Op.GATHER, (x, indices), offset_dims=tuple(kept), collapsed_slice_dims=dims,
        start_index_map=dims, index_vector_dim=len(dims), operand_batching_dims=(),
        start_indices_batching_dims=(),
        slice_sizes=tuple(1 if d in dims else n for d, n in enumerate(x.shape)),
    )  # fmt: skip


@st.composite
def gathers(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[list[int]]]:
    """An operand's shape, its dimensions that are gathered, and their places, some outside."""
    before = draw(st.sampled_from([(), (1,), (5,), (130,), (2, 70)]))
    middle = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    after = draw(st.sampled_from([(), (3,), (1, 2)]))
    dims = tuple(range(len(before), len(before) + len(middle)))
    return (*before, *middle, *after), dims, [draw(PLACES) for _ in middle]


@given(gathers(), st.sampled_from([DType.F32, DType.BF16, DType.S32, DType.PRED, DType.S64]))
def test_random_places(
    made: tuple[tuple[int, ...], tuple[int, ...], list[list[int]]], dtype: DType
) -> None:
    shape, dims, places = made
    node = gathered(given_(0, dtype, *shape), dims, places)
    known = patterns_of(node)
    assert (known is not None) == (math.prod(shape[: dims[0]]) > 1)
    graph = graph_of(node)
    check(graph, arguments(graph), compiled(graph, lnc=2), most=0)


def test_lines_of_a_grid() -> None:
    node = gathered(given_(0, DType.F32, 4, 5, 6), (1, 2), [[0, 9, -1], [3, 3]])
    known = patterns_of(node)
    assert known is not None
    assert known.lines == (Line(1, 1, (0, 4, 0)), Line(2, 2, (3, 3)))
    assert known.rows == 1
    assert known.axes == (1, 2)
    assert known.copies == 2


def test_gathers_that_differ_in_places_alone() -> None:
    """What is recorded for one must not be played for the other."""
    x = given_(0, DType.F32, 8, 6)
    graph = graph_of(*(gathered(x, (1,), [[0, at, 5]]) for at in (1, 2, 3)))
    check(graph, arguments(graph), most=0)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_a_transposed_operand(order: tuple[int, ...]) -> None:
    x = build.transpose(given_(0, DType.F32, 40, 50, 9), order)
    node = gathered(x, (1, 2), [[0, 0, 1, 1, 2], [3, 5, 7, 8]])
    graph = graph_of(node)
    check(graph, arguments(graph), most=0)


def test_what_does_not_fit_a_tile_is_divided() -> None:
    """An image of 480,000 bytes, reversed rows first: each part reads the rows that it needs."""
    node = gathered(given_(0, DType.F32, 3, 300, 400), (1, 2),
                    [[299 - i // 2 for i in range(200)], list(range(0, 400, 3))])  # fmt: skip
    graph = graph_of(node)
    program = check(graph, arguments(graph), most=0)
    assert 10 < program.instructions < 100


def test_places_that_the_program_is_given_are_not_known() -> None:
    indices = given_(1, DType.S64, 3, 1)
    assert places_of(indices) is None
    assert places_of(build.binary(Op.ADD, indices, 1)) is None
    counted = build.iota(DType.S64, (3, 1), 0)
    assert places_of(build.binary(Op.MULTIPLY, counted, 2)).ravel().tolist() == [  # type: ignore[union-attr]
        0, 2, 4,
    ]  # fmt: skip


def _cost(*places: list[int], shape: tuple[int, ...] = (2, 1280, 32, 32)) -> Any:
    node = gathered(given_(0, DType.BF16, *shape), (2, 3), list(places))
    return cost_of(node, Machine.of(get_target("trn2"), lnc=1))


def test_time_of_an_interpolation() -> None:
    """Ten million elements are copied, none is looked up: one for each lane and cycle."""
    twice = [i // 2 for i in range(64)]
    cost = _cost(twice, twice)
    assert cost.kind == "patterns"
    assert not cost.busy.get("dma")
    clock = get_target("trn2").core.scalar.clock_ghz
    assert cost.either["scalar"] == pytest.approx(2 * 1280 * 64 * 64 / 128 / clock / 1e3)
    program = compiled(graph_of(cost.node), lnc=1)
    assert program.instructions < 200
    # What HBM gives and takes, 26 MB, in 180 us or less; single elements took milliseconds.
    assert program.predict().device_us < 400


def test_copies_take_the_least_that_an_instruction_takes() -> None:
    jumps = np.random.default_rng(0).integers(0, 32, 64).tolist()
    cost = _cost(jumps, jumps, shape=(1, 128, 32, 32))
    copies = patterns_of(cost.node).copies  # type: ignore[union-attr]
    assert copies > 400
    spec = get_target("trn2").core.scalar
    assert cost.either["scalar"] == pytest.approx(copies * 64 / spec.clock_ghz / 1e3)
