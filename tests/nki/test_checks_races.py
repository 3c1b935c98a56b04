"""Races between two cores, against a map of all bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki.language as nl
from nki.checks import races
from nki.checks.races import Races, Touch
from nki.tensor import NkiTensor

SHAPE = (6, 8)


def view(tensor: NkiTensor, plan: tuple[int, int, int, int, int]) -> NkiTensor:
    row, rows, column, columns, step = plan
    return tensor[row : min(6, row + rows), column : min(8, column + columns) : step]


def bytes_of(plan: tuple[int, int, int, int, int]) -> set[int]:
    row, rows, column, columns, step = plan
    return {
        (r * 8 + c) * 2 + k
        for r in range(row, min(6, row + rows))
        for c in range(column, min(8, column + columns), step)
        for k in range(2)
    }


views = st.tuples(
    st.integers(0, 5), st.integers(1, 6), st.integers(0, 7), st.integers(1, 8), st.integers(1, 3)
)
touches = st.lists(st.tuples(st.integers(0, 1), views, st.booleans()), max_size=12)


@settings(max_examples=150, deadline=None)
@given(touches, st.booleans())
def test_races_are_exact(plan: Any, by_bytes: bool) -> None:
    tensor = nl.ndarray(SHAPE, nl.bfloat16, nl.shared_hbm)
    found = Races()
    for line, (core, where, writes) in enumerate(plan):
        found.touch(core, Touch(view(tensor, where), writes, ("f.py", line)))
    before = races._MANY
    try:
        races._MANY = -1 if by_bytes else before
        found.meet()
    finally:
        races._MANY = before
    # Equal accesses count once, with their first line.
    lines: dict[Any, int] = {}
    for line, touch in enumerate(plan):
        key = (touch[0], frozenset(bytes_of(touch[1])), touch[2])
        lines.setdefault(key, line)
    racing = {
        (a, b)
        for (core_a, bytes_a, write_a), a in lines.items()
        for (core_b, bytes_b, write_b), b in lines.items()
        if core_a == 0 and core_b == 1 and (write_a or write_b) and bytes_a & bytes_b
    }
    assert {line for _, (_, line) in found.findings} <= {line for line, _ in enumerate(plan)}
    assert bool(found.findings) == bool(racing)
    # Every access of core 1 that races with any is named, whichever way it was found.
    # Two views may show the same bytes, and count twice.
    named = {line for _, (_, line) in found.findings}
    assert {frozenset(bytes_of(plan[line][1])) for line in named} == {
        frozenset(bytes_of(plan[b][1])) for _, b in racing
    }
    found.meet()  # nothing is left


def test_other_storages_do_not_race() -> None:
    found = Races()
    for core in range(2):
        tensor = nl.ndarray(SHAPE, nl.float32, nl.shared_hbm)
        found.touch(core, Touch(tensor, True, ("f.py", core)))  # noqa: FBT003 (a named tuple)
    found.meet()
    assert found.findings == []


def test_cores_that_have_met_do_not_race() -> None:
    found, tensor = Races(), nl.ndarray(SHAPE, nl.float32, nl.shared_hbm)
    for core in range(2):
        found.touch(core, Touch(tensor, True, ("f.py", core)))  # noqa: FBT003
        found.meet()
    assert found.findings == []


@pytest.mark.parametrize("count", [100, 3000])
def test_many_interleaved_accesses(count: int) -> None:
    """Core 0 has the even columns and core 1 the odd ones, row by row: all boxes meet."""
    tensor = nl.ndarray((count, 64), nl.float32, nl.shared_hbm)
    found = Races()
    for row in range(count):
        for core in range(2):
            found.touch(core, Touch(tensor[row, core::2], True, ("f.py", row)))  # noqa: FBT003
    found.touch(1, Touch(tensor[7, 0:1], False, ("g.py", 1)))  # noqa: FBT003
    found.meet()
    assert [where for _, where in found.findings] == [("g.py", 1)]
