"""What SBUF and PSUM must hold at the same time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.checks.flow import Times
from nki.context import current_run
from nki.core import default_target
from nki.errors import NkiError
from nki.recorder import Recorder

PARTITION = 256 * 1024  # of trn3
WIDE = 16384  # float32 elements that take a quarter of it


pytestmark = pytest.mark.usefixtures("reference_executor")


def recorder() -> Recorder:
    found = current_run()
    assert isinstance(found, Recorder)
    return found


def record(kernel: Any, *args: Any) -> None:
    nki.jit(kernel).record(*args)


def test_sizes_of_the_target() -> None:
    core = default_target().core
    assert core.sbuf.bytes_per_partition == PARTITION
    assert core.psum.banks == 8


def test_tiles_that_live_one_after_the_other_fit() -> None:
    def kernel() -> None:
        for _ in range(20):
            nl.zeros((128, WIDE), nl.float32)

    record(kernel)


def test_tiles_that_live_together_do_not_fit() -> None:
    def kernel() -> None:
        tiles = [nl.zeros((128, WIDE), nl.float32, name=f"tile{i}") for i in range(4)]
        small = nl.zeros((128, 4), nl.float32)
        for tile in [*tiles, small]:
            nisa.memset(tile, 1)

    text = (
        r"5 tensors in use here take 262160 bytes per partition of SBUF, and trn3 has 262144; the "
        r"largest are 'tile0' float32\[128, 16384\] first used at .*test_checks_capacity.py:\d+, "
        r"'tile1' .*, 'tile2' .*; .*test_checks_capacity.py:\d+; use smaller or fewer tiles.*NKI220"
    )
    with pytest.raises(NkiError, match=text):
        record(kernel)


def test_the_check_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel() -> None:
        tiles = [nl.zeros((128, WIDE), nl.float32) for _ in range(5)]
        for tile in tiles:
            nisa.memset(tile, 1)

    with pytest.raises(NkiError, match="NKI220"):
        record(kernel)
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "off")
    record(kernel)


@pytest.mark.parametrize("inside", [True, False])
def test_a_loop_keeps_what_was_created_outside(*, inside: bool) -> None:
    def kernel() -> None:
        outer = [nl.ndarray((128, WIDE), nl.float32) for _ in range(3)]
        with recorder().for_loop(0, 3):
            for tile in outer:  # one after the other, but needed again in the next iteration
                nisa.memset(tile, 1)
            for _ in range(4 if inside else 1):
                nisa.memset(nl.ndarray((128, WIDE), nl.float32), 1)
            if not inside:
                tiles = [nl.ndarray((128, WIDE), nl.float32) for _ in range(2)]
                for tile in [*tiles, *tiles]:
                    nisa.memset(tile, 1)

    if inside:
        record(kernel)
    else:
        with pytest.raises(NkiError, match=r"5 tensors in use here take 327680 bytes.*NKI220"):
            record(kernel)


def test_addresses_count_where_they_are_in_use() -> None:
    def kernel(late: int) -> None:
        fixed = [nl.ndarray((128, WIDE), nl.float32, address=(0, 0)) for _ in range(2)]
        fixed.append(nl.ndarray((128, WIDE), nl.float32, address=(0, 32768)))
        free = [nl.ndarray((128, WIDE), nl.float32) for _ in range(3)]
        for tile in fixed:
            nisa.memset(tile, 1)
        if late:
            nisa.memset(fixed[0], 0)  # now 1.5 quarters are covered while `free` lives
        for tile in [*free, *free]:
            nisa.memset(tile, 1)
        if late:
            nisa.memset(fixed[0], 0)
            nisa.memset(fixed[2], 0)

    record(kernel, 0)
    with pytest.raises(NkiError, match=r"5 tensors in use here take 294912 bytes.*NKI220"):
        record(kernel, 1)


def test_psum_is_counted_in_banks() -> None:
    def kernel(count: int, width: int) -> None:
        tiles = [nl.ndarray((128, width), nl.float32, nl.psum) for _ in range(count)]
        for tile in [*tiles, *tiles]:
            nisa.memset(tile, 0)

    record(kernel, 8, 512)
    record(kernel, 8, 1)
    text = (
        r"9 tensors in use here take 9 banks of PSUM, and trn3 has 8; .*float32\[128, 1\].*; copy "
        r"results to SBUF earlier, or put several into one PSUM tensor of a bank \[NKI221"
    )
    with pytest.raises(NkiError, match=text):
        record(kernel, 9, 1)
    with pytest.raises(NkiError, match=r"take 10 banks of PSUM.*NKI221"):
        record(kernel, 5, 513)


def test_psum_with_addresses() -> None:
    def kernel(free: int) -> None:
        fixed = nl.ndarray((128, 1024), nl.float32, nl.psum, address=(0, 2048))
        tiles = [nl.ndarray((128, 8), nl.float32, nl.psum) for _ in range(free)]
        for tile in [fixed, *tiles, *tiles, fixed]:
            nisa.memset(tile, 0)

    record(kernel, 6)
    with pytest.raises(NkiError, match=r"8 tensors in use here take 9 banks.*NKI221"):
        record(kernel, 7)


Plan = list[tuple[int, int]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30),
    st.lists(st.integers(0, 29), max_size=3),
)
def test_lifetimes_are_those_of_a_slow_reference(plan: Plan, loops: list[int]) -> None:
    """Uses of six tiles, some instructions within loops of one or two instructions."""
    made = Recorder("kernel", default_target())
    order: list[tuple[int, int | None]] = []  # tile, number of the loop
    with made.active():
        tiles = [nl.ndarray((1, 4), nl.float32) for _ in range(6)]
        for i, (tile, _) in enumerate(plan):
            if i in loops:
                with made.for_loop(0, 2):
                    nisa.memset(tiles[tile], 0)
                    nisa.memset(tiles[(tile + 1) % 6], 0)
                order += [(-1, None), (tile, i), ((tile + 1) % 6, i), (-1, None)]
            else:
                nisa.memset(tiles[tile], 0)
                order.append((tile, None))
    times = Times(made.recording, made.depth_of)
    assert len(times.location) == len(order)
    for number, storage in enumerate(made.recording.storages):
        tile = next(i for i, t in enumerate(tiles) if t.storage is storage)
        uses = [i for i, (used, _) in enumerate(order) if used == tile]
        first, last = uses[0], uses[-1]
        for use in uses:
            if order[use][1] is not None:  # born outside of the loop: all of it
                begin = use - 1 if order[use - 1][0] == -1 else use - 2
                first, last = min(first, begin), max(last, begin + 3)
        assert (times.first[number], times.last[number]) == (first, last)
        assert times.used[number] == uses[0]


def test_a_hundred_thousand_instructions_take_a_moment() -> None:
    made = Recorder("kernel", default_target())
    with made.active():
        for _ in range(100):
            tile = nl.ndarray((128, 64), nl.float32)
            nisa.memset(tile, 0)
    body = made.recording.body.code
    for _ in range(1000 - 1):
        body.extend(body[: 100 * 4])
    begin = time.process_time()
    times = Times(made.recording, made.depth_of)
    assert time.process_time() - begin < 1
    assert len(times.location) == 100_000
    assert np.all(times.last == 99_900 + np.arange(100))


@pytest.mark.parametrize(
    ("rows", "beside"), [(1, 4), (32, 4), (33, 2), (64, 2), (65, 1), (96, 1), (128, 1)]
)
@pytest.mark.parametrize("region", ["sbuf", "psum"])
def test_narrow_tiles_lie_side_by_side(region: str, rows: int, beside: int) -> None:
    width, columns = (WIDE, 4) if region == "sbuf" else (512, 8)

    def kernel(count: int) -> None:
        tiles = [nl.ndarray((rows, width), nl.float32, getattr(nl, region)) for _ in range(count)]
        for tile in [*tiles, *tiles]:
            nisa.memset(tile, 0)

    record(kernel, columns * beside)
    with pytest.raises(NkiError, match=r"NKI22[01]"):
        record(kernel, columns * beside + 1)


def test_tiles_beside_addresses_take_the_other_partitions() -> None:
    def kernel(rows: int) -> None:
        fixed = nl.ndarray((64, 2 * WIDE), nl.float32, address=(64, 0))
        tiles = [nl.ndarray((128, WIDE), nl.float32) for _ in range(2)]
        tiles += [nl.ndarray((rows, WIDE), nl.float32) for _ in range(2)]
        for tile in [fixed, *tiles, *tiles, fixed]:
            nisa.memset(tile, 0)

    record(kernel, 64)
    with pytest.raises(NkiError, match="NKI220"):
        record(kernel, 128)
