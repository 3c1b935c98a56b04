"""Updates of parts of a tensor, nested and repeated, in the memory of the whole.

Generated programs write to views of a parameter and read it in between, as functionalised PyTorch
does; the reference executor has one memory per buffer, so a write that comes too early shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.codegen.loop import Kernel, scalars
from neuronxcc.ir import DType, Node, Operand, build, indexing
from neuronxcc.lowering.geometry.progressions import Progression, fixed_places, progression
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.loop import LoopStep
from tests.compiler.lowering_models import Model
from tests.compiler.lowering_tools import expected, lowered, run

SHAPE = (2, 4, 6, 3)
SIZE = math.prod(SHAPE)
View = tuple[Callable[[Node], Node], Callable[[Node, Node], Node]]  # take it, put it back


def rows(first: int, step: int, count: int) -> Node:
    """Positions as a front end writes them."""
    return build.add(build.multiply(build.iota(DType.S64, (count,), 0), step), first)


def selected(dim: int, at: int) -> View:
    """x[..., at]"""

    def take(x: Node) -> Node:
        shape = [n for d, n in enumerate(x.shape) if d != dim]
        return build.reshape(build.slice_dim(x, dim, at, at + 1), shape)

    def put(x: Node, part: Node) -> Node:
        shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
        starts = [at if d == dim else 0 for d in range(x.type.rank)]
        return build.dynamic_update_slice(x, build.reshape(part, shape), starts)

    return take, put


def sliced(dim: int, first: int, step: int, count: int) -> View:
    """x[..., first : first + count * step : step]"""

    def take(x: Node) -> Node:
        starts = [first if d == dim else 0 for d in range(x.type.rank)]
        limits = [first + (count - 1) * step + 1 if d == dim else n for d, n in enumerate(x.shape)]
        return build.slice_(
            x, starts, limits, [step if d == dim else 1 for d in range(len(starts))]
        )

    def put(x: Node, part: Node) -> Node:
        if step == 1:
            starts = [first if d == dim else 0 for d in range(x.type.rank)]
            return build.dynamic_update_slice(x, part, starts)
        return indexing.put(x, rows(first, step, count), part, dim, "set")

    return take, put


def transposed(order: list[int]) -> View:
    """x.permute(order)"""
    back = [order.index(d) for d in range(len(order))]
    return (lambda x: build.transpose(x, order)), (lambda _, part: build.transpose(part, back))


def flattened(dim: int) -> View:
    """x.flatten(dim, dim + 1)"""

    def take(x: Node) -> Node:
        merged = x.shape[dim] * x.shape[dim + 1]
        return build.reshape(x, (*x.shape[:dim], merged, *x.shape[dim + 2 :]))

    return take, lambda x, part: build.reshape(part, x.shape)


@dataclass
class Memory:
    """A parameter whose content changes, with everything that was read of it."""

    draw: Callable[..., Any]
    model: Model = field(default_factory=Model)
    args: list[np.ndarray] = field(default_factory=list)
    results: list[Node] = field(default_factory=list)
    contents: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contents.append(self.model.param(*SHAPE))
        self.args.append(np.arange(SIZE, dtype=np.float32).reshape(SHAPE))

    def given(self, *shape: int) -> Node:
        self.args.append(np.arange(math.prod(shape), dtype=np.float32).reshape(shape) - 500)
        return self.model.param(*shape)

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def views(self, x: Node) -> list[View]:
        """Some views, each of the one before."""
        found = []
        for _ in range(self.number(0, 3)):
            view = self.view(x)
            found.append(view)
            x = view[0](x)
        return found

    def view(self, x: Node) -> View:
        dim = self.number(0, x.type.rank - 1)
        extent = x.shape[dim]
        kind = self.draw(st.sampled_from(("select", "slice", "slice", "transpose", "flatten")))
        if kind == "select" and x.type.rank > 1:
            at = self.number(0, extent - 1)
            return selected(dim, self.other(at, extent - 1))[0], selected(dim, at)[1]
        if kind == "transpose":
            return transposed(list(self.draw(st.permutations(range(x.type.rank)))))
        if kind == "flatten" and dim + 1 < x.type.rank:
            return flattened(dim)
        step = self.number(1, min(3, extent))
        count = self.number(1, (extent - 1) // step + 1)
        last = extent - 1 - (count - 1) * step
        first = self.number(0, last)
        take = sliced(dim, self.other(first, last), step, count)[0]
        return take, sliced(dim, first, step, count)[1]

    def other(self, place: int, last: int) -> int:
        """Where something is taken that is put back at a place: seldom elsewhere."""
        return place if self.draw(st.integers(0, 5)) else self.number(0, last)

    def write(self) -> None:
        """Change a part of the content."""
        whole = [self.contents[-1]]
        views = self.views(whole[0])
        for take, _ in views:
            whole.append(take(whole[-1]))
        new = self.changed(whole.pop())
        while whole:
            new = views.pop()[1](whole.pop(), new)
        self.contents.append(new)

    def changed(self, x: Node) -> Node:
        dim = self.number(0, x.type.rank - 1)
        count = self.number(1, 2)
        shape = [count if d == dim else n for d, n in enumerate(x.shape)]
        kind = self.draw(
            st.sampled_from(("rows", "rows", "add", "moved", "shuffled", "all", "scaled"))
        )
        if kind == "all":
            return self.given(*x.shape)
        if kind == "scaled":
            return build.multiply(x, 2)
        if kind == "shuffled":
            order = self.draw(st.permutations(range(x.shape[dim])))
            self.args.append(np.array(order, np.int64))
            return indexing.put(x, self.model.param(len(order), dtype=DType.S64), x, dim, "set")
        # One row twice is an error for "set" in PyTorch's own terms: its result is anyone's guess.
        places = self.draw(
            st.lists(st.integers(-1, x.shape[dim]), min_size=count, max_size=count, unique=True)
        )
        self.args.append(np.array(places, np.int64))
        index = self.model.param(count, dtype=DType.S64)
        if kind == "moved":  # what is written was elsewhere in the same memory
            part = build.slice_dim(x, dim, 0, 1)
            value = build.add(build.broadcast_to(part, shape), 1)
        else:
            value = self.given(*shape)
        return indexing.put(x, index, value, dim, "add" if kind == "add" else "set")

    def read(self) -> None:
        """Compute something from a part of some content, most often the present one."""
        x = self.contents[
            -1 if self.draw(st.integers(0, 2)) else self.number(0, len(self.contents) - 1)
        ]
        for take, _ in self.views(x):
            x = take(x)
        kind = self.draw(st.sampled_from(("negate", "sum", "same", "both")))
        if kind == "sum":
            x = build.reduce(x, "add", self.number(0, x.type.rank - 1))
        elif kind == "negate":
            x = build.negate(x)
        elif kind == "both" and self.results:
            other = self.draw(st.sampled_from(self.results))
            x = build.add(
                x, build.broadcast_to(build.reduce(other, "max", range(other.type.rank)), x.shape)
            )
        self.results.append(x)


@st.composite
def memories(draw: Callable[..., Any]) -> Memory:
    memory = Memory(draw)
    for _ in range(memory.number(1, 5)):
        (memory.write if draw(st.booleans()) else memory.read)()
    memory.write()
    if draw(st.booleans()):
        memory.read()
    return memory


@settings(max_examples=200)
@given(memories(), st.booleans(), st.booleans())
def test_a_changed_parameter_holds_what_was_written(
    memory: Memory, updated: bool, strided: bool
) -> None:
    *results, last = *memory.results, memory.contents[-1]
    aliases = {len(results): 0} if updated else {}
    graph = memory.model.graph("g", *results, last, aliases=aliases)
    layouts: dict[str, Any] = {}
    if strided:
        plain = [strides_of(p.shape) for p in graph.params]
        layouts["param_strides"] = [(18, 36, 3, 1), *plain[1:]]
        tops = [strides_of(r.shape) for r in results]
        layouts["result_strides"] = [*tops, (18, 36, 3, 1) if updated else strides_of(SHAPE)]
    for step in lowered(graph, **layouts).steps:
        if isinstance(step, LoopStep):
            assert_in_step(step.kernel)
    got = run(graph, memory.args, **layouts)
    for mine, wanted in zip(got, expected(graph, memory.args), strict=True):
        np.testing.assert_array_equal(mine, wanted)


def assert_in_step(kernel: Kernel) -> None:
    """A kernel that writes what it reads reads each element just where it writes it.

    The reference executor reads everything first, so it does not show the contrary.
    """
    stored = {store.access.slot: store.access for store in kernel.stores}
    for scalar in scalars(kernel):
        if scalar.what == "load" and scalar.access is not None:
            assert stored.get(scalar.access.slot, scalar.access) == scalar.access


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


# ---- what is not copied -------------------------------------------------------------------------


def largest(program: Program) -> int:
    """Points of the largest loop, all of the cache for a copy."""
    sizes = [0]
    for step in program.steps:
        if isinstance(step, LoopStep):
            sizes.append(math.prod(dim.extent for dim in step.kernel.dims))
        elif isinstance(step, CopyStep):
            sizes.append(SIZE)
    return max(sizes)


def row(dim: int = 0) -> tuple[Model, Node, Node, Node]:
    m = Model()
    x, index = m.param(*SHAPE), m.param(1, dtype=DType.S64)
    return m, x, index, m.param(*(1 if d == dim else n for d, n in enumerate(SHAPE)))


@pytest.mark.parametrize(
    "view",
    [
        [selected(0, 1)],
        [selected(0, 1), selected(0, 2)],
        [sliced(2, 1, 2, 3)],
        [sliced(1, 1, 1, 2), transposed([2, 0, 1, 3])],
        [transposed([1, 0, 3, 2]), sliced(3, 0, 3, 2), selected(0, 3)],
        [flattened(1), sliced(1, 4, 5, 3)],
    ],
)
def test_a_row_of_a_view_is_all_that_is_written(view: list[View]) -> None:
    m = Model()
    whole, index = [m.param(*SHAPE)], m.param(1, dtype=DType.S64)
    for take, _ in view:
        whole.append(take(whole[-1]))
    part = whole.pop()
    new = m.param(*part.shape[:-1], 1)
    changed = indexing.put(part, index, new, part.type.rank - 1, "set")
    for (_, put), x in zip(reversed(view), reversed(whole), strict=True):
        changed = put(x, changed)
    program = lowered(m.graph("g", changed, aliases={0: 0}))
    assert len(program.steps) == 1
    assert largest(program) == new.type.size
    assert not program.scratch_bytes


def test_updates_of_many_slices_one_after_the_other_write_rows_only() -> None:
    m, x, index, _ = row()
    content = x
    for at in (0, 1, 0):
        take, put = selected(0, at)
        new = m.param(4, 1, 3)
        content = put(content, indexing.put(take(content), index, new, 1, "set"))
    program = lowered(m.graph("g", content, aliases={0: 0}))
    assert [largest(program), len(program.steps)] == [12, 3]


def test_what_is_put_back_as_it_was_is_not_written() -> None:
    m, x, _, new = row(2)
    once = build.dynamic_update_slice(x, new, [0, 0, 3, 0])
    take, put = sliced(2, 3, 1, 1)
    program = lowered(m.graph("g", put(once, take(once)), aliases={0: 0}))
    assert len(program.steps) == 1


def test_a_late_reader_of_the_old_content_runs_before_the_update() -> None:
    m, x, index, new = row(2)
    full = indexing.put(x, index, new, 2, "set")
    late = build.reduce(build.tanh(x), "add", (1, 2))  # made after the update, needs nothing of it
    both = build.add(late, build.reduce(full, "max", (1, 2)))
    program = lowered(m.graph("g", both, full, aliases={1: 0}))
    assert program.scratch_bytes < SIZE * 4
    assert not any(isinstance(step, CopyStep) for step in program.steps)


def test_rows_made_of_other_rows_are_computed_first() -> None:
    m, x, index, _ = row(2)
    before = indexing.take(x, build.subtract(index, 1), 2)
    full = indexing.put(x, index, build.multiply(before, 0.5), 2, "set")
    program = lowered(m.graph("g", full, aliases={0: 0}))
    assert largest(program) == SIZE // 6


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (rows(3, 2, 4), Progression(3, 2)),
        (build.slice_(rows(3, 2, 4), (1,), (4,), (2,)), Progression(5, 4)),
        (build.constant(np.array([7, 4, 1])), Progression(7, -3)),
        (build.subtract(build.constant(np.array([9, 9])), rows(0, 3, 2)), Progression(9, -3)),
        (build.convert(build.reshape(rows(1, 1, 3), (3, 1)), DType.S32), Progression(1, 1)),
        (build.constant(np.array([1, 2, 4])), None),
        (build.multiply(rows(0, 1, 3), rows(0, 1, 3)), None),
        (build.iota(DType.S64, (2, 3), 0), None),
        (build.multiply(rows(0, 1, 3), 1 << 40), None),
    ],
)
def test_positions_that_are_known(node: Node, wanted: Progression | None) -> None:
    assert progression(node) == wanted


@pytest.mark.parametrize("positions", [[5, 6], [-1, 0], [3, 3], [4, 2]])
def test_rows_outside_or_out_of_order_are_not_a_window(positions: list[int]) -> None:
    m = Model()
    x, new = m.param(6, 2), m.param(2, 2)
    index = build.constant(np.array(positions))
    assert fixed_places(indexing.put(x, index, new, 0, "set")) is None


def test_effects_keep_their_order_when_a_reader_should_come_first() -> None:
    m, x, index, new = row(2)
    full = indexing.put(x, index, new, 2, "set")

    def effect(operand: Node, sequence: int) -> Node:
        types, args = (operand.type,), (Operand(0),)
        return build.custom_call("aten::abs", types, (operand,), args=args, sequence=sequence)

    first = effect(full, 0)
    second = effect(x, 1)  # reads the old content, and comes after what reads the new one
    graph = m.graph("g", first, second, full, aliases={2: 0})
    old = np.arange(SIZE, dtype=np.float32).reshape(SHAPE) - 9
    args = [old, np.array([3]), np.ones((2, 4, 1, 3), np.float32)]
    for mine, wanted in zip(run(graph, args), expected(graph, args), strict=True):
        np.testing.assert_array_equal(mine, wanted)
