"""Updates in place: parameters that get new content, caches, operands that die."""

from __future__ import annotations

import numpy as np

from neuronxcc.ir import DType, Graph, build, calls, indexing, parameter
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.text import program_to_text

from .lowering_models import Model, headlines
from .lowering_tools import expected, lowered, run


def steps(program: Program) -> list[str]:
    return headlines(program_to_text(program, kernels=False))


def check(graph: Graph, args: list[np.ndarray]) -> Program:
    for got, wanted in zip(run(graph, args), expected(graph, args), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return lowered(graph)


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_an_optimizer_writes_straight_to_its_parameters() -> None:
    m = Model()
    weight, grad, momentum = m.param(6, 4), m.param(6, 4), m.param(6, 4)
    new = build.add(build.multiply(momentum, 0.5), grad)
    graph = m.graph("g", build.subtract(weight, build.multiply(new, 0.25)), new,
                    aliases={0: 0, 1: 2})  # fmt: skip
    program = check(graph, [ramp(6, 4), ramp(6, 4), ramp(6, 4)])
    assert steps(program) == ["loop loop_multiply_add_subtract [6,4] (%0, %2, %1)"]
    assert program.results == (0, 2)


def test_a_cache_is_updated_without_a_copy() -> None:
    m = Model()
    cache, new = m.param(2, 8, 4), m.param(2, 1, 4)
    place = m.param(1, dtype=DType.S64)
    full = indexing.put(cache, place, new, 1, "set")
    graph = m.graph("g", build.reduce(full, "max", 1), full, aliases={1: 0})
    program = check(graph, [ramp(2, 8, 4), -ramp(2, 1, 4), np.array([3])])
    assert steps(program) == [
        "loop loop_copy [2,4] (%2, %1, %0)",
        "loop loop_reduce [2,8+,4] (%0, %3)",
    ]


def test_a_cache_whose_old_content_is_needed_is_copied() -> None:
    m = Model()
    cache, new = m.param(2, 8, 4), m.param(2, 1, 4)
    place = m.param(1, dtype=DType.S64)
    full = indexing.put(cache, place, new, 1, "set")
    old = build.reduce(build.multiply(full, build.reverse(cache, (1,))), "add", 1)
    graph = m.graph("g", old, full, aliases={1: 0})
    program = check(graph, [ramp(2, 8, 4), -ramp(2, 1, 4), np.array([3])])
    assert steps(program) == [
        "loop loop_copy [2,8,4] (%0, %4)",
        "loop loop_copy [2,4] (%2, %1, %0)",
        "loop loop_multiply_reduce [2,8+,4] (%0, %4, %3)",
    ]


def test_updates_one_after_the_other_share_the_memory() -> None:
    m = Model()
    cache, new = m.param(2, 8, 4), m.param(2, 1, 4)
    first, second = m.param(1, dtype=DType.S64), m.param(1, dtype=DType.S64)
    full = indexing.put(indexing.put(cache, first, new, 1, "set"), second, new, 1, "add")
    graph = m.graph("g", full, aliases={0: 0})
    program = check(graph, [ramp(2, 8, 4), -ramp(2, 1, 4), np.array([3]), np.array([5])])
    assert [b.kind for b in program.buffers] == ["input"] * 4
    assert len(program.steps) == 2


def test_a_window_at_a_place_known_at_run_time_is_updated_in_place() -> None:
    m = Model()
    x, window = m.param(8, 4), m.param(2, 4)
    start = m.param(dtype=DType.S32)
    graph = m.graph("g", build.dynamic_update_slice(build.negate(x), window, [start, 0]))
    program = check(graph, [ramp(8, 4), ramp(2, 4), np.array(5, np.int32)])
    assert steps(program) == [
        "loop loop_negate [8,4] (%0, %3)",
        "loop loop_copy [2,4] (%2, %1, %3)",
    ]


def test_parameters_may_change_places() -> None:
    m = Model()
    x, y = m.param(3, 4), m.param(3, 4)
    check(m.graph("g", y, x, aliases={0: 0, 1: 1}), [ramp(3, 4), -ramp(3, 4)])


def test_the_old_content_of_an_updated_parameter_is_a_result_of_its_own() -> None:
    m = Model()
    x = m.param(3, 4)
    check(m.graph("g", build.negate(x), x, aliases={0: 0}), [ramp(3, 4)])


def test_a_parameter_is_not_overwritten_while_it_is_read_elsewhere() -> None:
    m = Model()
    x = m.param(4, 4)
    graph = m.graph("g", build.add(x, build.transpose(x, (1, 0))), aliases={0: 0})
    program = check(graph, [ramp(4, 4)])
    assert isinstance(program.steps[-1], CopyStep)


def test_a_counter_is_updated_after_its_readers() -> None:
    m = Model()
    count, x = m.param(dtype=DType.S64), m.param(8)
    row = indexing.take(x, build.reshape(count, (1,)), 0)
    graph = m.graph("g", row, build.add(count, 1), aliases={1: 0})
    program = check(graph, [np.array(3), ramp(8)])
    assert steps(program) == ["loop loop_gather [] (%1, %0, %2)", "loop loop_add [] (%0)"]


def test_a_result_takes_the_memory_of_an_operand_that_dies() -> None:
    m = Model()
    x = m.param(64, 64)
    powers = build.exp(x)
    columns = build.reduce(powers, "add", 0, keep=True)
    again = build.divide(powers, build.broadcast_to(columns, (64, 64)))
    rows = build.reduce(build.exp(again), "max", 1, keep=True)
    result = build.subtract(build.exp(again), build.broadcast_to(rows, (64, 64)))
    program = lowered(m.graph("g", result))
    assert program.scratch_bytes <= 64 * 4 + 64  # the sums alone; the rest lies in the output


def test_a_result_that_views_what_is_stored_is_stored_that_way() -> None:
    m = Model()
    x = m.param(4, 6)
    graph = m.graph("g", build.transpose(build.tanh(x), (1, 0)))
    program = lowered(graph, result_strides=[(1, 6)])
    assert steps(program) == ["loop loop_tanh [4,6] (%0, %1)"]


def test_one_node_as_two_results_is_in_two_places() -> None:
    m = Model()
    y = build.negate(m.param(3))
    program = check(m.graph("g", y, y), [ramp(3)])
    assert len(set(program.results)) == 2


def test_a_view_of_a_result_twice_is_in_two_places() -> None:
    m = Model()
    y = build.reshape(build.reduce(m.param(3, 4), "add", (0, 1)), (1,))
    p = parameter(0, y.type)
    body = build.graph("body", [p], [build.reverse(p, ())])
    program = check(m.graph("g", calls.call(body, [y]), y, y), [ramp(3, 4)])
    assert len(set(program.results)) == 3
