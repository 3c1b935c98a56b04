"""The memory plan and the order of steps."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.lowering.emission.drafts import Draft
from neuronxcc.lowering.errors import StepOrderError
from neuronxcc.lowering.fusion.cluster import Storage
from neuronxcc.lowering.fusion.units import Home
from neuronxcc.lowering.lower import check_order
from neuronxcc.lowering.memory.plan import ALIGNMENT, Interval, peak, plan
from neuronxcc.lowering.scheduling.schedule import dependencies, late, scheduled
from neuronxcc.lowering.scheduling.schedule import peak as peak_of

INTERVALS = st.lists(
    st.builds(
        lambda nbytes, first, length: Interval(nbytes, first, first + length),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=30,
)


@given(INTERVALS)
def test_what_lives_at_once_does_not_overlap(intervals: list[Interval]) -> None:
    total = plan(intervals)
    for number, a in enumerate(intervals):
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.nbytes <= total
        for b in intervals[:number]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert not together or apart


@given(INTERVALS)
def test_no_plan_is_smaller_than_what_lives_at_once(intervals: list[Interval]) -> None:
    assert plan(intervals) >= peak(intervals)


def test_memory_is_used_again() -> None:
    intervals = [Interval(1000, i, i + 1) for i in range(20)]
    assert plan(intervals) == 2048


@dataclass(frozen=True)
class Step:
    """What a step reads and writes."""

    reads: tuple[Hashable, ...]
    writes: tuple[Hashable, ...]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    count = draw(st.integers(1, 12))
    steps = []
    for number in range(count):
        known = st.sampled_from(range(number)) if number else st.nothing()
        reads = draw(st.lists(known, max_size=2)) if number else []
        again = draw(st.lists(known, max_size=1)) if number else []
        steps.append(Step(tuple(reads), (number, *again)))
    return steps


@given(programs(), st.data())
def test_an_order_keeps_what_depends_on_each_other(steps: list[Step], data: st.DataObject) -> None:
    nbytes: dict[Hashable, int] = {n: data.draw(st.integers(1, 9)) for n in range(len(steps))}
    chain = [n for n in range(len(steps)) if n % 3 == 0]
    order = scheduled(list(enumerated(steps)), nbytes, [chain])
    place = {step.number: position for position, step in enumerate(order)}
    for number, needs in enumerate(dependencies(steps, [chain])):
        assert all(place[before] < place[number] for before in needs)
    positions = [step.number for step in order]
    assert peak_of(steps, positions, nbytes) <= peak_of(steps, range(len(steps)), nbytes)


@dataclass(frozen=True)
class Numbered(Step):
    """A step that knows its place."""

    number: int


def enumerated(steps: list[Step]) -> list[Numbered]:
    return [Numbered(step.reads, step.writes, number) for number, step in enumerate(steps)]


def test_what_frees_memory_goes_first() -> None:
    # A chain of large tensors, each of which also has a small consumer at the end of the program.
    steps = [Step((n - 1,) if n else (), (n,)) for n in range(10)]
    steps += [Step((n,), (("small", n),)) for n in range(10)]
    nbytes: dict[Hashable, int] = dict.fromkeys(range(10), 1000)
    order = scheduled(steps, nbytes)
    positions = [steps.index(step) for step in order]
    assert peak_of(steps, range(20), nbytes) == 10_000
    assert peak_of(steps, positions, nbytes) == 2000


def test_what_needs_no_other_step_runs_just_before_its_first_user() -> None:
    # Ten tensors computed from arguments, each wanted by one step of a chain: first all of these,
    # as they stand, is the worst order, and the thrifty one takes them early, too: they are small.
    made = [Step((("argument", n),), (n,)) for n in range(10)]
    chain = [Step((n, ("state", n)), (("state", n + 1),)) for n in range(10)]
    nbytes: dict[Hashable, int] = {("state", n): 100 for n in range(11)}
    nbytes.update(dict.fromkeys(range(10), 10))
    steps = [Step((), (("state", 0),)), *made, *chain]
    order = scheduled(steps, nbytes)
    wanted = [s for both in zip(made, chain, strict=True) for s in both]
    assert [s for s in order if s.reads] == wanted


@given(st.data())
def test_late_order_is_an_order(data: st.DataObject) -> None:
    steps = data.draw(programs())
    needs = dependencies(steps)
    order = late(needs, range(len(steps)))
    assert sorted(order) == list(range(len(steps)))
    place = {number: position for position, number in enumerate(order)}
    for number, before in enumerate(needs):
        assert all(place[other] < place[number] for other in before)


@pytest.mark.parametrize("kind", ["temp", "output", "input"])
@pytest.mark.parametrize("rows", [0, 4])
def test_a_step_that_reads_what_nothing_has_written_is_refused(kind: str, rows: int) -> None:
    """Memory of the caller's has its content, and memory of no bytes has none."""
    node = parameter(0, TensorType(DType.F32, (rows, 3)))
    storage = Storage(kind, node, node.shape, (3, 1))

    def draft(reads: list[Storage], writes: list[Storage]) -> Draft:
        return Draft(Home(0, storage), reads, writes, lambda _: pytest.fail("is not built"))

    writer, reader, updater = (
        draft([], [storage]),
        draft([storage], []),
        draft([storage] * 2, [storage]),
    )
    for order in ([writer, reader], [updater, reader], []):
        check_order("graph7", order)
    if kind == "input" or not rows:
        check_order("graph7", [reader, writer])
        return
    with pytest.raises(StepOrderError) as told:
        check_order("graph7", [draft([], []), reader, writer])
    assert str(told.value) == (
        "[NCC_ISCH001] step 1 of graph7 reads f32[4,3] before any step has written it. This is a "
        "defect of the compiler, not of your program. remedy: exclude the function with "
        "torch.compiler.disable, and report this message"
    )
