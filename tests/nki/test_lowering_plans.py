"""The plans behind lowered kernels: dimensions that agree, lane groups, memory that is shared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.program.steps.tape import TapeStep, instructions
from nki.lowering import lower
from nki.lowering.groups import Group, Touch
from nki.lowering.shapes import Dims, merge, refine, split
from tests.nki.lowering_tools import items, lowered, record, splits


def positions(dims: Dims) -> np.ndarray[Any, Any]:
    """Where the elements are, in order."""
    found = np.zeros(1, np.int64)
    for extent, stride in dims:
        found = (found[:, None] + stride * np.arange(extent)).reshape(-1)
    return found


@st.composite
def dims(draw: Any, total: int) -> Dims:
    shape = draw(splits(total))
    return tuple((n, draw(st.sampled_from([0, 1, 2, 5, 12, -3]))) for n in shape)


TOTALS = st.sampled_from([1, 2, 6, 12, 24, 30, 36])


@given(data=st.data(), total=TOTALS)
def test_dimensions_are_refined_until_they_agree(data: Any, total: int) -> None:
    operands = [data.draw(dims(total)) for _ in range(3)]
    found = refine(operands)
    while isinstance(found, int):
        assert len(merge(operands[found])) > 1
        operands[found] = ((total, 1),)
        found = refine(operands)
    extents, strides = found
    assert math.prod(extents) == total
    for operand, steps in zip(operands, strides, strict=True):
        refined = tuple(zip(extents, steps, strict=True))
        np.testing.assert_array_equal(positions(refined), positions(operand))


@given(data=st.data(), total=TOTALS)
def test_dimensions_are_split_in_front(data: Any, total: int) -> None:
    given_dims = data.draw(dims(total))
    keep = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    halves = split(given_dims, keep)
    if halves is not None:
        outer, inner = halves
        assert math.prod(n for n, _ in outer) == keep
        np.testing.assert_array_equal(positions((*outer, *inner)), positions(given_dims))


def touched(touch: Touch, chunk: int) -> tuple[int, set[int]]:
    buffer, low, high, advance, _ = touch
    return buffer, set(range(low + chunk * advance, high + chunk * advance))


@st.composite
def touches(draw: Any) -> Touch:
    low = draw(st.integers(0, 40))
    return (
        draw(st.integers(1, 2)), low, low + draw(st.integers(1, 12)),
        draw(st.sampled_from([0, 4, 8, 8, -8])), draw(st.booleans()),
    )  # fmt: skip


@given(
    chunks=st.integers(1, 4),
    steps=st.lists(st.lists(touches(), min_size=1, max_size=2), min_size=2, max_size=5),
)
def test_instructions_of_a_group_meet_within_chunks_only(
    chunks: int, steps: list[list[Touch]]
) -> None:
    group = Group(chunks)
    members: list[list[Touch]] = []
    for step in steps:
        if not group.takes(step, chunks):
            continue
        for earlier in members:
            for a in earlier:
                for b in step:
                    if not (a[4] or b[4]):
                        continue
                    for i in range(chunks):
                        for j in range(chunks):
                            (x, these), (y, those) = touched(a, i), touched(b, j)
                            assert i == j or x != y or not these & those
        group.add(step)
        members.append(step)


def test_what_uses_a_row_block_shares_a_group() -> None:
    group = Group(8)
    row = 4 * 512
    for column in range(4):
        tile = (1, 512 * column, 15 * row + 512 * (column + 1), 16 * row, True)
        assert group.takes([tile], 8)
        group.add([tile])
    # The same rows turned: a chunk of these is a column of the tile.
    assert not group.takes([(1, 0, 127 * row + 64, 64, False)], 8)
    assert not group.takes([(2, 0, 1, 1, False)], 4)


@nki.jit
def chain(a: Any, count: int) -> Any:
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    for i in range(count):
        rows = slice(32 * i, 32 * (i + 1))
        tiles = [nl.ndarray((32, 16), nl.float32) for _ in range(3)]
        nisa.dma_copy(dst=tiles[0], src=a[rows])
        nisa.tensor_scalar(dst=tiles[1], data=tiles[0], op0="add", operand0=float(i))
        nisa.tensor_tensor(dst=tiles[2], data1=tiles[0], data2=tiles[1], op="multiply")
        nisa.dma_copy(dst=out[rows], src=tiles[2])
    return out


def test_memory_is_used_again() -> None:
    few, many = (items(0, (32 * n, 16), "float32", special=False) for n in (2, 8))
    sizes = [lower(record(chain, x, n)).scratch_bytes for x, n in ((few, 2), (many, 8))]
    assert sizes[0] == sizes[1] == 3 * 32 * 16 * 4
    (got,) = lowered(record(chain, many, 8), [many])
    numbers = np.repeat(np.arange(8), 32)[:, None]
    np.testing.assert_array_equal(got, many * (many + numbers.astype(np.float32)))


def test_numbers_make_no_kernels() -> None:
    x = items(0, (256, 16), "float32")
    program = lower(record(chain, x, 8))
    (tape,) = (step for step in program.steps if isinstance(step, TapeStep))
    assert len(tape.functions) == 3


def test_columns_of_one_tile_do_not_overlap() -> None:
    """Even and odd columns are written without a detour."""

    @nki.jit
    def swap(a: Any) -> Any:
        t, u = nl.ndarray(a.shape, a.dtype), nl.ndarray(a.shape, a.dtype)
        nisa.dma_copy(dst=t, src=a)
        nisa.tensor_copy(dst=u[:, ::2], src=t[:, 1::2])
        nisa.tensor_scalar(dst=u[:, 1::2], data=u[:, ::2], op0="multiply", operand0=2.0)
        nisa.tensor_copy(dst=u[:, 0:3], src=u[:, 1:4])
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=u)
        return out

    x = items(0, (4, 8), "float32", special=False)
    recording = record(swap, x)
    program = lower(recording)
    (tape,) = (step for step in program.steps if isinstance(step, TapeStep))
    # Only the overlapping copy needs two steps.
    assert len(instructions(tape).starts) == 6
    wanted = np.repeat(x[:, 1::2], 2, axis=1) * np.array([1, 2] * 4, np.float32)
    wanted[:, 0:3] = wanted[:, 1:4].copy()
    np.testing.assert_array_equal(lowered(recording, [x])[0], wanted)
