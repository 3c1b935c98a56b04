"""Indices out of bounds at run time: refused with both numbers, or skipped; and the shadow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiIndexError
from nki.shadow import Shadow


def indices(values: Any) -> Any:
    return np.array(values, np.int32).reshape(-1, 1)


@nki.jit
def gathered(x: Any, index: Any, mode: nisa.oob_mode, fill: float) -> Any:
    out = nl.ndarray((index.shape[0], x.shape[1]), x.dtype, nl.shared_hbm)
    held = nl.full(out.shape, fill, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(held, x.vector_select(0, nl.load(index)), oob_mode=mode)
    nisa.dma_copy(out, held)
    return out


@nki.jit
def scattered(out: Any, rows: Any, index: Any, mode: nisa.oob_mode) -> Any:
    nisa.dma_copy(out.vector_select(0, nl.load(index)), nl.load(rows), oob_mode=mode)
    return out


@nki.jit
def row(x: Any, index: Any, mode: nisa.oob_mode) -> Any:
    """Two rows from an index on: fewer indices are in bounds than there are rows."""
    out = nl.ndarray((2, x.shape[1]), x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, nl.zeros(out.shape, x.dtype, buffer=nl.sbuf))
    register = nisa.register_alloc()
    nisa.register_load(register, nl.load(index))
    place = [[x.shape[1], 2], [1, x.shape[1]]]
    nisa.dma_copy(out, x.ap(place, scalar_offset=register, indirect_dim=0), oob_mode=mode)
    return out


X = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1, -(2**31)])
def test_an_error_names_the_index_and_the_bound(bad: int) -> None:
    text = rf"index {bad} is out of bounds: it must be from 0 to below 10; .*oob_mode.*\[NKI132\]"
    with pytest.raises(NkiIndexError, match=text) as caught:
        gathered(X, indices([1, bad, 3]), nisa.oob_mode.error, 0.0)
    assert caught.value.where[0] == __file__
    with pytest.raises(NkiIndexError, match=text):
        scattered(X.copy(), X[:3], indices([1, bad, 3]), nisa.oob_mode.error)
    bound = text.replace("below 10", "below 9")
    with pytest.raises(NkiIndexError, match=bound):
        row(X, indices(bad), nisa.oob_mode.error)


@pytest.mark.usefixtures("executor")
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1])
def test_skipped_elements_stay(bad: int) -> None:
    skip = nisa.oob_mode.skip
    got = gathered(X, indices([1, bad, 3]), skip, 7.0)
    np.testing.assert_array_equal(got, [X[1], np.full(4, 7.0), X[3]])
    out, expected = X.copy(), X.copy()
    expected[[2, 5]] = -X[[0, 2]]
    np.testing.assert_array_equal(scattered(out, -X[:3], indices([2, bad, 5]), skip), expected)
    np.testing.assert_array_equal(row(X, indices(bad), skip), np.zeros((2, 4)))
    np.testing.assert_array_equal(row(X, indices(8), skip), X[8:])
    np.testing.assert_array_equal(row(X, indices(9), skip), np.zeros((2, 4)))


@st.composite
def accesses(draw: st.DrawFn) -> list[tuple[bool, int, int, int, int, int]]:
    """(whether it writes, first row, rows, first byte, items, bytes of an item) in 8 x 24 bytes."""
    made = []
    for _ in range(draw(st.integers(1, 12))):
        first = draw(st.integers(0, 7)) if draw(st.booleans()) else 0
        rows = draw(st.integers(1, 8 - first)) if first or draw(st.booleans()) else 8
        size = draw(st.sampled_from([1, 2, 4]))
        byte = draw(st.integers(0, 5)) * 4 if draw(st.booleans()) else draw(st.integers(0, 23))
        byte = min(byte, 24 - size)
        count = draw(st.integers(1, (24 - byte) // size))
        made.append((draw(st.booleans()), first, rows, byte, count, size))
    return made


@given(steps=accesses())
def test_rows_that_are_written_alike_share_their_flags(steps: Any) -> None:
    shadow, model = Shadow(8 * 24, 4, rows=8), np.zeros((8, 24), np.bool_)
    for writes, first, rows, byte, count, size in steps:
        args = first * 24 + byte, (rows, count), (24, size), size
        part = model[first : first + rows, byte : byte + count * size]
        whole = part.reshape(rows, count, size).all(-1)
        if writes:
            shadow.mark(*args)
            part[...] = True
            continue
        missing = shadow.missing(*args)
        assert (missing is None) == bool(whole.all())
        if missing is not None:
            assert missing == np.unravel_index(int(np.argmin(whole)), whole.shape)
            np.testing.assert_array_equal(shadow.written(*args), whole)
    assert not shadow.complete or model.all()


class _View:
    """What is noted of a view: its sizes, and distances in bytes."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        self.extent = shape, strides, itemsize


@st.composite
def tiles(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Which of several views of a matrix of bytes is noted, marked or asked for, and where."""
    steps = st.tuples(
        st.sampled_from(["note", "note", "note", "mark", "ask", "begun"]),
        st.integers(0, 5),
        st.integers(0, 63),
    )
    return draw(st.lists(steps, min_size=1, max_size=24))


@given(steps=tiles(), rows=st.sampled_from([1, 8]))
def test_noted_writes_count_as_marked_ones(steps: Any, rows: int) -> None:
    """Views of 8 x 64 bytes: of one row of memory, as HBM has it, or of eight partitions."""
    views = [
        _View((8, 4), (64, 4), 4), _View((8, 16), (64, 4), 4), _View((8, 1), (64, 2), 2),
        _View((8, 4, 2), (64, 16, 4), 4), _View((8, 3), (64, 1), 1),
        _View((8, 2, 8), (64, 32, 1), 1),
    ]  # fmt: skip
    shadow, model = Shadow(8 * 64, 4, rows=rows), Shadow(8 * 64, 1, rows=rows)
    written = np.zeros(8 * 64, np.bool_)
    for what, number, place in steps:
        view = views[number]
        shape, strides, size = view.extent
        last = sum(s * (n - 1) for n, s in zip(shape[1:], strides[1:], strict=True)) + size
        at = min(place // size * size, 64 - last)
        starts = at + sum(
            np.arange(n).reshape(-1, *[1] * (len(shape) - d - 1)) * s
            for d, (n, s) in enumerate(zip(shape, strides, strict=True))
        )
        items = starts[..., None] + np.arange(size)
        if what == "begun":
            assert shadow.begun == bool(written.any())
        elif what == "ask":
            whole = written[items].all(-1)
            missing = shadow.missing(at, *view.extent)
            assert (missing is None) == bool(whole.all())
            if missing is not None:
                assert missing == np.unravel_index(int(np.argmin(whole)), shape)
        else:
            written[items] = True
            model.mark_bytes(starts, size)
            shadow.note(at, view) if what == "note" else shadow.mark(at, *view.extent)
    assert (shadow.missing(0, (8, 64), (64, 1), 1) is None) == bool(written.all())
    np.testing.assert_array_equal(shadow.written(0, (8, 64), (64, 1), 1), written.reshape(8, 64))
    np.testing.assert_array_equal(model.written(0, (8, 64), (64, 1), 1), written.reshape(8, 64))
