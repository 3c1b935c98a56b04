"""Indices of one integer: in a tile beside anything, and integers of Python as expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.errors import NkiError
from tests.nki.compat.compat_tools import Array, random

WAYS = ("element", "tile", "sum")


@st.composite
def accesses(draw: Any) -> tuple[tuple[int, ...], int, str, list[Any], bool]:
    """Draw a shape, which dimension a tile indexes and how, and the indices of the others."""
    shape = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(2, 4))))
    dim = draw(st.integers(0, len(shape) - 1))
    expressions = draw(st.booleans())
    way = draw(st.sampled_from(WAYS if expressions else ("element",)))
    parts: list[Any] = []
    for size in shape:
        if draw(st.integers(0, 3)) == 0:
            parts.append(draw(st.integers(0, size - 1)))
        else:
            low = draw(st.integers(0, size - 1))
            parts.append((low, draw(st.integers(low + 1, size))))
    parts[dim] = None
    if not any(isinstance(part, tuple) for part in parts):
        other = (dim + 1) % len(shape)
        parts[other] = (0, shape[other])
    return shape, dim, way, parts, expressions


def indices(parts: list[Any], dynamic: Any, *, expressions: bool) -> tuple[Any, ...]:
    """Return indices of the first generation; ranges become slices or expressions."""
    ranges = [part for part in parts if isinstance(part, tuple)]
    found: list[Any] = []
    axis = 0
    for part in parts:
        if isinstance(part, tuple) and expressions:
            key = tuple(slice(None) if k == axis else None for k in range(max(2, len(ranges))))
            found.append(nl.arange(*part)[key])
            axis += 1
        elif isinstance(part, tuple):
            found.append(slice(*part))
        else:
            found.append(dynamic if part is None else part)
    return tuple(found)


def chosen(tile: Any, way: str, column: int) -> Any:
    """Return one integer of a tile, as an element, a tile of its own, or a sum with a number."""
    if way == "element":
        return tile[0, column]
    one = tile[0:1, column : column + 1]
    return one + nl.arange(1)[None, :] if way == "sum" else one


@given(drawn=accesses(), data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_tile_of_one_integer_has_no_axis(drawn: Any, data: Any) -> None:
    """It stands beside expressions of any axis, slices and integers, in loads and stores."""
    shape, dim, way, parts, expressions = drawn
    source, target = (data.draw(st.integers(0, shape[dim] - 1)) for _ in range(2))
    a = random(*shape, seed=sum(shape))
    numbers = [slice(*part) if isinstance(part, tuple) else part for part in parts]
    numbers[dim] = source
    want = a[tuple(numbers)]

    @nki.jit
    def kernel(a: Any, places: Any) -> Any:
        found = nl.load(places)
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[...], src=a[...])
        tile = nl.load(a[indices(parts, chosen(found, way, 0), expressions=expressions)])
        place = indices(parts, chosen(found, way, 1), expressions=expressions)
        nl.store(out[place], tile * 2.0)
        return out

    after = a.copy()
    numbers[dim] = target
    after[tuple(numbers)] = want * 2
    np.testing.assert_array_equal(kernel(a, np.array([[source, target]], np.int32)), after)


@pytest.mark.parametrize("mask", [False, True])
def test_a_part_that_an_element_chooses_is_assigned_to_a_tile(mask: bool) -> None:
    """Its rows are the partitions; a mask may leave rows out that the tensor does not have."""
    a = random(3, 5, 4)

    @nki.jit
    def kernel(a: Any, place: Any) -> Any:
        element = nl.load(place)[0, 1]
        tiles = nl.ndarray((2, nl.par_dim(5), 4), dtype=a.dtype)
        tiles[0] = nl.load(a[element, :, :])
        p, f = nl.mgrid[0:8, 0:4]
        if mask:
            tiles[1, p, f] = nl.load(a[element, p, f], mask=p < 5)
        else:
            tiles[1, :, :] = nl.load(a[element])
        out = nl.ndarray((2, 5, 4), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out[0], tiles[0])
        nl.store(out[1], tiles[1])
        return out

    got = kernel(a, np.array([[0, 2]], np.int32))
    np.testing.assert_array_equal(got, np.stack([a[2], a[2]]))


@pytest.mark.parametrize("index", [3, -1])
def test_an_element_is_checked_when_the_kernel_runs(index: int) -> None:
    @nki.jit
    def kernel(a: Any, place: Any) -> Any:
        out = nl.ndarray((5, 4), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(a[nl.load(place)[0, 0], :, :]))
        return out

    with pytest.raises(IndexError, match=f"index {20 * index} is out of bounds .* size 60"):
        kernel(random(3, 5, 4), np.array([[index]], np.int32))


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("way", ["element", "rows"])
def test_an_index_tile_holds_integers(kind: Any, way: str) -> None:
    """The executors did not agree about numbers with a point, which DMA engines cannot read."""

    @nki.jit
    def kernel(a: Any, places: Any) -> Any:
        found = nl.load(places)
        return nl.load(a[found[0, 0] if way == "element" else found])

    with pytest.raises(NkiError, match=r"is no index tensor .*integers.*NKI025") as caught:
        kernel(random(3, 4), np.zeros((2, 1), kind))
    assert caught.value.where[0] == __file__


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_index_tiles_of_all_integers(kind: Any) -> None:
    a, rows = random(5, 4), np.array([[4], [0], [3]], kind)

    @nki.jit
    def kernel(a: Any, places: Any) -> Any:
        out = nl.ndarray((3, 4), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(a[nl.load(places), nl.arange(4)[None, :]]))
        return out

    np.testing.assert_array_equal(kernel(a, rows), a[rows[:, 0]])


@pytest.mark.parametrize("memory", [nl.sbuf, nl.psum, nl.hbm])
def test_index_tiles_of_other_memories_go_through_sbuf(memory: Any) -> None:
    a, places = random(5, 3, 4), np.array([[4], [0], [3]], np.int32)

    @nki.jit
    def kernel(a: Any, places: Any) -> Any:
        found = places
        if memory != nl.hbm:
            found = nl.ndarray(places.shape, dtype=nl.int32, buffer=memory)
            found[...] = nl.load(places)
        out = nl.ndarray((3, 4), dtype=a.dtype, buffer=nl.shared_hbm)
        one = nl.ndarray((2, nl.par_dim(3), 4), dtype=a.dtype)
        nl.store(out, nl.load(a[found, 1, nl.arange(4)[None, :]]))
        one[1] = nl.load(a[found[0, 0], :, :])
        nl.store(out, one[1] + nl.load(out))
        return out

    np.testing.assert_array_equal(kernel(a, places), a[places[:, 0], 1] + a[4])


def test_iota_of_counters_and_programs() -> None:
    """They are expressions of one value; so are integers of NumPy."""

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((4, 3, 6), dtype=nl.int32, buffer=nl.shared_hbm)
        program = nl.program_id(axis=0)
        for i in nl.affine_range(3):
            whole = nl.ndarray((1, 6), dtype=nl.int32)
            whole[...] = nisa.iota(program, dtype=nl.int32).broadcast_to((1, 6))
            whole += nisa.iota(10 * i, dtype=nl.int32).reshape((1, 1)).broadcast_to((1, 6))
            whole += nisa.iota(np.int32(-100), dtype=nl.int32).broadcast_to((1, 6))
            nl.store(out[program, i], whole)
        return out

    want = np.arange(4)[:, None, None] + 10 * np.arange(3)[None, :, None] - 100
    got = kernel[4](random(1, 1))
    np.testing.assert_array_equal(got, np.broadcast_to(want, (4, 3, 6)))


@pytest.mark.parametrize("wrong", ["3", 3.0, True, None])
def test_iota_takes_expressions_only(wrong: Any) -> None:
    @nki.jit
    def kernel() -> Any:
        return nisa.iota(wrong, dtype=nl.int32)

    with pytest.raises(NkiError, match=r"iota was given .*nl.arange.*NKI260"):
        kernel()


@pytest.mark.parametrize("wrap", [bool, np.bool_])
def test_affine_select_by_counters_alone(wrap: Any) -> None:
    """A comparison of integers is one truth for the whole tile."""
    a = random(4, 6)

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((3, 4, 6), dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.load(a)
        for i in nl.affine_range(3):
            chosen = nisa.affine_select(pred=wrap(i >= 1), on_true_tile=tile, on_false_value=-7.0)
            nl.store(out[i], chosen)
        return out

    want: Array = np.stack([np.full_like(a, -7), a, a])
    np.testing.assert_array_equal(kernel(a), want)


def test_an_operands_mask_leaves_out_what_is_beyond_the_tensor() -> None:
    """``x[i_p, i_f][i_f < n]``: the expressions may go further than the tensor."""
    a, b = random(8, 4), random(8, 5, seed=1)

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, y = nl.load(a), nl.load(b)
        p, f = nl.arange(8)[:, None], nl.arange(16)[None, :]
        product = nisa.nc_matmul(x, y[p, f][f < 5])
        out = nl.ndarray((4, 5), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, product)
        return out

    np.testing.assert_allclose(kernel(a, b), a.T @ b, rtol=1e-6)
