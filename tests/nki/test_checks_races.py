"""Races between two cores, against a map of all bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki import access
from nki.checks import races
from nki.checks.races import Races, Touch
from nki.merging.values import EventKey, Values
from nki.tensor import NkiTensor

SHAPE = (6, 8)


def nothing_known() -> Values:
    return Values([], frozenset())


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
    found = Races(nothing_known)
    for line, (core, where, writes) in enumerate(plan):
        found.touch(core, Touch(view(tensor, where), writes, ("f.py", line), []))
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
    found = Races(nothing_known)
    for core in range(2):
        tensor = nl.ndarray(SHAPE, nl.float32, nl.shared_hbm)
        found.touch(core, Touch(tensor, True, ("f.py", core), []))  # noqa: FBT003 (a named tuple)
    found.meet()
    assert found.findings == []


def test_cores_that_have_met_do_not_race() -> None:
    found, tensor = Races(nothing_known), nl.ndarray(SHAPE, nl.float32, nl.shared_hbm)
    for core in range(2):
        found.touch(core, Touch(tensor, True, ("f.py", core), []))  # noqa: FBT003
        found.meet()
    assert found.findings == []


@pytest.mark.parametrize("count", [100, 3000])
def test_many_interleaved_accesses(count: int) -> None:
    """Core 0 has the even columns and core 1 the odd ones, row by row: all boxes meet."""
    tensor = nl.ndarray((count, 64), nl.float32, nl.shared_hbm)
    found = Races(nothing_known)
    for row in range(count):
        for core in range(2):
            found.touch(core, Touch(tensor[row, core::2], True, ("f.py", row), []))  # noqa: FBT003
    found.touch(1, Touch(tensor[7, 0:1], False, ("g.py", 1), []))  # noqa: FBT003
    found.meet()
    assert [where for _, where in found.findings] == [("g.py", 1)]


class _Same(Values):
    """All writes store the same."""

    def __init__(self) -> None:
        super().__init__([], frozenset())

    def same(self, events: Sequence[EventKey]) -> bool:
        del events
        return True


def test_what_both_cores_write_alike_is_found_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write of one core was compared with every write of the other one: 4,000,000 times."""
    compared = []

    def overlap(a: NkiTensor, b: NkiTensor) -> bool:
        compared.append((a, b))
        return access.overlap(a, b)

    monkeypatch.setattr(races, "overlap", overlap)
    count = 2000
    tensor = nl.ndarray((64, count), nl.float32, nl.shared_hbm)
    found = Races(_Same)
    for column in range(count):
        for core in range(2):
            written = Touch(tensor[:, column : column + 1], True, ("f.py", column), [])  # noqa: FBT003
            found.touch(core, written)
    found.meet()
    assert found.findings == []
    assert count <= len(compared) <= 2 * count


# Each writes the same four rows of `out` on both cores: (core, x, out, tile).
Way = Callable[[int, Any, Any, Any], None]
SAME: dict[str, Way] = {}
DIFFERENT: dict[str, Way] = {}


def same(way: Way) -> Way:
    SAME[way.__name__] = way
    return way


def different(way: Way) -> Way:
    DIFFERENT[way.__name__] = way
    return way


@same
def a_copy(_core: int, x: Any, out: Any, _tile: Any) -> None:
    nisa.dma_copy(out, x[0:4])


@same
def a_chain(core: int, x: Any, out: Any, tile: Any) -> None:
    nisa.dma_copy(tile, x[0:4])
    nisa.activation(tile, nl.exp, tile, scale=2.0)
    mine = nl.ndarray((8, 8), nl.float32)  # of no consequence
    nisa.memset(mine, core)
    nisa.dma_copy(out, tile)


@same
def read_after_writing(_core: int, x: Any, out: Any, tile: Any) -> None:
    nisa.dma_copy(out, x[0:4])
    nisa.dma_copy(tile, out)


@same
def after_a_barrier(core: int, x: Any, out: Any, _tile: Any) -> None:
    half = slice(2 * core, 2 * core + 2)
    scratch = nl.ndarray((4, 8), nl.float32, nl.shared_hbm)
    nisa.dma_copy(scratch[half], x[half])
    nisa.core_barrier(scratch, (0, 1))
    nisa.dma_copy(out, scratch)


@same
def random_numbers(_core: int, _x: Any, out: Any, tile: Any) -> None:
    nisa.rand2(tile, 0.0, 1.0)
    nisa.dma_copy(out, tile)


@same
def a_register(_core: int, x: Any, out: Any, tile: Any) -> None:
    index = nisa.register_alloc(3)
    nisa.dma_copy(tile, x.ap([[8, 4], [1, 8]], scalar_offset=index))
    nisa.dma_copy(out, tile)


@different
def another_part(core: int, x: Any, out: Any, _tile: Any) -> None:
    nisa.dma_copy(out, x[4 * core : 4 * core + 4])


@different
def a_number(core: int, _x: Any, out: Any, tile: Any) -> None:
    nisa.memset(tile, core)
    nisa.dma_copy(out, tile)


@different
def two_values(_core: int, x: Any, out: Any, _tile: Any) -> None:
    nisa.dma_copy(out, x[0:4])
    nisa.dma_copy(out, x[4:8])


@different
def overlapping_rows(core: int, x: Any, out: Any, _tile: Any) -> None:
    nisa.dma_copy(out[core : core + 3], x[core : core + 3])


@different
def read_before_writing(core: int, x: Any, out: Any, tile: Any) -> None:
    nisa.memset(tile, 0)
    if core:
        nisa.dma_copy(tile, out)
    nisa.dma_copy(out, x[0:4])


@different
def what_a_partner_sends(core: int, x: Any, out: Any, tile: Any) -> None:
    other = nl.ndarray((4, 8), nl.float32)
    nisa.dma_copy(tile, x[4 * core : 4 * core + 4])
    nisa.sendrecv(tile, other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.dma_copy(out, other)


@different
def an_engine_that_did_something_else(core: int, _x: Any, out: Any, tile: Any) -> None:
    if core:
        nisa.rand2(tile, 0.0, 1.0)
    nisa.rand2(tile, 0.0, 1.0)
    nisa.dma_copy(out, tile)


@different
def after_a_loop(core: int, x: Any, out: Any, tile: Any) -> None:
    # The second pass takes what the first one left, which differs.
    old = nl.ndarray((4, 8), nl.float32)
    nisa.dma_copy(old, x[0:4])

    def body(_: Any) -> None:
        nisa.tensor_copy(tile, old)
        nisa.memset(old, core)

    nl.fori_loop(0, 2, body)
    nisa.dma_copy(out, tile)


@different
def a_register_of_its_own(core: int, x: Any, out: Any, tile: Any) -> None:
    index = nisa.register_alloc(core)
    nisa.dma_copy(tile, x.ap([[8, 4], [1, 8]], scalar_offset=index))
    nisa.dma_copy(out, tile)


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("name", [*SAME, *DIFFERENT])
def test_what_both_cores_write_alike_is_no_race(
    name: str, by_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_bytes:
        monkeypatch.setattr(races, "_MANY", -1)

    @nki.jit
    def kernel(x: Any) -> Any:
        out, tile = (nl.ndarray((4, 8), nl.float32, b) for b in (nl.shared_hbm, nl.sbuf))
        {**SAME, **DIFFERENT}[name](nl.program_id(0), x, out, tile)
        return out

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = kernel[2].record(np.zeros((16, 8), np.float32)).findings
    assert any(finding.code == "NKI304" for finding, _ in findings) == (name in DIFFERENT)
