"""Index expressions, masks and views against NumPy, on generated ones."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki import access
from nki.errors import NkiError
from nki.first_generation.boxes import TileRegion, box_slices, boxes_of, region_of_mask
from nki.first_generation.indices import Index, Mask
from nki.first_generation.state import State, use_state
from nki.first_generation.tensors import Tensor
from nki.language import shared_constant
from nki.tensor import create
from tests.nki.compat.compat_tools import Array

SMALL = st.integers(-4, 4)


@st.composite
def expressions(draw: Any, shape: tuple[int, ...], depth: int = 3) -> tuple[Index, Array]:
    """Draw an expression that broadcasts to a shape, and the same as an array."""
    if depth == 0 or draw(st.booleans()):
        axis = draw(st.integers(0, len(shape) - 1))
        start, n = draw(SMALL), shape[axis]
        key = tuple(slice(None) if k == axis else None for k in range(len(shape)))
        return nl.arange(start, start + n)[key], np.arange(start, start + n)[key]
    a, x = draw(expressions(shape, depth - 1))
    operation = draw(st.sampled_from(["+", "-", "*", "r-", "//", "%", "neg", "index"]))
    if operation == "neg":
        return -a, -x
    if operation == "index":
        b, y = draw(expressions(shape, depth - 1))
        return a + b, x + y
    number = draw(st.integers(1, 4)) if operation in ("//", "%") else draw(SMALL)
    return {
        "+": lambda: (a + number, x + number),
        "-": lambda: (a - number, x - number),
        "*": lambda: (number * a, number * x),
        "r-": lambda: (number - a, number - x),
        "//": lambda: (a // number, x // number),
        "%": lambda: (a % number, x % number),
    }[operation]()


SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=3).map(tuple)


@given(st.data())
def test_arithmetic_is_that_of_arrays(data: Any) -> None:
    index, array = data.draw(expressions(data.draw(SHAPES)))
    assert index.shape == array.shape
    np.testing.assert_array_equal(index.integers(), array)
    assert index.bounds() == (array.min(), array.max())


COMPARE = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@st.composite
def masks(draw: Any, shape: tuple[int, ...]) -> tuple[Mask, Array]:
    """Draw a mask of some comparisons, and its truth values."""
    mask, values = None, np.ones(shape, bool)
    for _ in range(draw(st.integers(1, 3))):
        index, array = draw(expressions(shape, 2))
        compare, number = draw(st.sampled_from(COMPARE)), draw(SMALL)
        one, many = compare(index, number), compare(array, number)
        many = np.broadcast_to(many, shape)
        if mask is None:
            mask, values = one, many
        elif draw(st.booleans()):
            mask, values = mask & one, values & many
        else:
            mask, values = mask | ~one, values | ~many
    assert mask is not None
    return mask, values


@given(st.data())
def test_a_region_holds_what_its_mask_says(data: Any) -> None:
    shape = data.draw(SHAPES)
    mask, values = data.draw(masks(shape))
    np.testing.assert_array_equal(mask.values(shape), values)
    region = region_of_mask(mask, shape)
    again = np.zeros(shape, int)
    for box in boxes_of(region):
        again[box_slices(box)] += 1
    np.testing.assert_array_equal(again, values.astype(int))  # and no element twice
    if region.box is not None:
        assert region.inside is not None or values[box_slices(region.box)].all()
        where = np.argwhere(values)
        assert region.inside is None or region.box == tuple(
            (int(low), int(high) + 1) for low, high in zip(where.min(0), where.max(0), strict=True)
        )


def test_rectangles_need_no_truth_values() -> None:
    i_p, i_f = nl.mgrid[0:128, 0:512]
    assert region_of_mask((i_p * 2 + 3 < 64) & (i_f >= 5), (128, 512)) == TileRegion(
        ((0, 31), (5, 512))
    )
    assert region_of_mask(i_p < 0, (128, 512)) == TileRegion(None)
    assert region_of_mask((i_p < 9) & True, (128, 512)) == TileRegion(((0, 9), (0, 512)))
    assert region_of_mask((i_p < 9) & False, (128, 512)) == TileRegion(None)


@given(st.data())
@settings(max_examples=60)
def test_a_view_of_hbm_shows_what_numpy_shows(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(2, 6), min_size=1, max_size=3).map(tuple))
    result = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3).map(tuple))
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    pairs = [data.draw(expressions(result, 2)) for _ in shape]
    with use_state(State()):
        view = Tensor((shared_constant(array),))[tuple(index for index, _ in pairs)]
        inside = all(
            (x >= 0).all() and (x < n).all() for (_, x), n in zip(pairs, shape, strict=True)
        )
        affine = all(index.affine for index, _ in pairs)
        if not (inside and affine):
            with pytest.raises(NkiError, match=r"NKI010|NKI260"):
                view.tile()
            return
        want = array[tuple(x for _, x in pairs)]
        assert view.shape == want.shape
        np.testing.assert_array_equal(access.read(view.tile()), want)


@given(st.data())
@settings(max_examples=60)
def test_a_view_on_chip_shows_what_numpy_shows(data: Any) -> None:
    rows, free = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 12))
    count = data.draw(st.integers(1, rows))
    first = data.draw(st.integers(0, rows - count))
    result = (count, *data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    index, x = data.draw(expressions(result, 2))
    assume(index.affine)
    key = (slice(None), *[None] * (len(result) - 1))
    lanes, y = nl.arange(first, first + count)[key], np.arange(first, first + count)[key]
    array = np.arange(rows * free, dtype=np.int32).reshape(rows, free)
    with use_state(State()):
        tensor = create((rows, free), "int32")
        access.write(tensor, array)
        view = Tensor((tensor,))[lanes, index]
        mixes = count > 1 and index.raised(np.broadcast_shapes(x.shape, y.shape)).steps[0]
        if mixes or (x < 0).any() or (x >= free).any():
            with pytest.raises(NkiError, match=r"NKI010|NKI260"):
                view.tile()
            return
        np.testing.assert_array_equal(access.read(view.tile()), array[y, x])


def test_a_mask_makes_views_beyond_the_end_possible() -> None:
    with use_state(State()):
        tensor = Tensor((shared_constant(np.arange(10, dtype=np.int32)),))
        view = tensor[4 * nl.arange(3)[:, None] + nl.arange(4)[None, :]]
        with pytest.raises(
            NkiError, match="from 0 to 11 is out of bounds for dimension 0 of size 10"
        ):
            view.tile()
        np.testing.assert_array_equal(access.read(view.part(((2, 3), (0, 2)))), [[8, 9]])


def test_slices_beside_expressions_have_their_own_axis() -> None:
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    with use_state(State()):
        tensor = Tensor((shared_constant(array),))
        p, f = nl.arange(3)[:, None], nl.arange(5)[None, :]
        np.testing.assert_array_equal(access.read(tensor[p, 1:3, 4].tile()), array[:, 1:3, 4])
        np.testing.assert_array_equal(access.read(tensor[p, -1, f].tile()), array[:, -1])
        np.testing.assert_array_equal(access.read(tensor[1, 2].tile()), array[1, 2])
        np.testing.assert_array_equal(access.read(tensor[:, 1, 0:2].tile()), array[:, 1, 0:2])


def test_index_tiles_choose_rows_beside_slices_and_numbers() -> None:
    array = np.arange(60, dtype=np.int32).reshape(5, 3, 4)
    rows = np.array([4, 0, 4], np.int32).reshape(3, 1)
    with use_state(State()):
        tensor = Tensor((shared_constant(array),))
        chosen = create((3, 1), "int32")
        access.write(chosen, rows)
        tile = Tensor((chosen,))
        f = nl.arange(2)[None, :]
        cases = [
            (tensor[tile], array[rows[:, 0]]),
            (tensor[tile, 1:3], array[rows[:, 0], 1:3]),
            (tensor[tile, 1, 2 * f], array[rows, 1, [[0, 2]]]),
            (tensor[tile, 2, 3], array[rows, 2, 3]),
            (tensor[1, rows_below(tile), f], array[1, rows // 4, [[0, 1]]]),
            (tensor[tile[0:1], 0, :], array[4:5, 0]),
        ]
        for view, want in cases:
            assert view.shape == want.shape
            index = access.read(view.tile().pattern.indirect.index)  # type: ignore[union-attr]
            np.testing.assert_array_equal(access.read(view.tile(), index), want)


def rows_below(tile: Tensor) -> Tensor:
    """Return a tile with the quarter of another's numbers."""
    made = create((3, 1), "int32")
    access.write(made, access.read(tile.tile()) // 4)
    return Tensor((made,))


def test_dynamic_slices_beside_expressions_and_from_tiles() -> None:
    array = np.arange(60, dtype=np.int32).reshape(5, 12)
    with use_state(State()):
        p = nl.arange(5)[:, None]
        tensor = create((5, 12), "int32")
        access.write(tensor, array)
        tile = Tensor((tensor,))
        np.testing.assert_array_equal(access.read(tile[p, nl.ds(3, 4)].tile()), array[:, 3:7])
        start = create((1, 1), "int32")
        access.write(start, np.array([[6]], np.int32))
        moved = tile[:, nl.ds(Tensor((start,)), 4)].tile()
        np.testing.assert_array_equal(access.read(moved, np.array([[6]])), array[:, 6:10])


# What is computed of a tile of rows and columns, any of which may be none.
TAILS: dict[str, Any] = {
    "copied": lambda t: t,
    "computed": lambda t: nl.add(nl.exp(t), 1.0),
    "sine": nl.sin,
    "softmax": lambda t: nl.softmax(t, axis=[1]),
    "chosen": lambda t: nl.where(nl.less(t, 0.5), t, 0.5),
    "transposed twice": lambda t: nl.copy(nl.transpose(nl.copy(nl.transpose(t)))),
}


@pytest.mark.parametrize("name", TAILS)
@given(size=st.integers(1, 9), tiles=st.integers(1, 3), axis=st.integers(0, 1))
@settings(max_examples=12, deadline=None)
def test_the_last_slice_of_a_loop_may_be_empty(name: str, size: int, tiles: int, axis: int) -> None:
    """It is no work: nothing is read, written or summed."""
    step = 4

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((9, 9), dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.full((9, 9), 7.0, dtype=a.dtype))
        total = nl.zeros((9, 9), dtype=nl.float32, buffer=nl.psum)
        for i in nl.affine_range(tiles):
            part = slice(i * step, min((i + 1) * step, size))
            at: Any = (part, slice(0, 9))
            if axis == 1:
                rest = max(0, part.stop - part.start)
                at = (slice(None), nl.ds(i * step, rest) if i % 2 else part)
            tile = nl.load(a[at])
            nl.store(out[at], TAILS[name](tile))
            if axis == 0:
                total += nisa.nc_matmul(tile, tile)
        sums = nl.ndarray((9, 9), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(sums, total)
        return out, sums

    @nki.jit
    def at_once(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, TAILS[name](nl.load(a)))
        return out

    a = np.random.default_rng(size).random((9, 9)).astype(np.float32)
    got, sums = kernel(a)
    end = min(size, tiles * step)
    want = np.full((9, 9), 7, np.float32)
    for first in range(0, end, step):
        part = np.s_[first : min(first + step, end)]
        key = part if axis == 0 else (slice(None), part)
        want[key] = at_once(np.ascontiguousarray(a[key]))
    np.testing.assert_array_equal(got, want)
    done = a[:end].astype(float) if axis == 0 else a[:0]
    np.testing.assert_allclose(sums, done.T @ done, rtol=20 * 2.0**-24)
