"""Index arithmetic: positions are those of the elements, whatever form they take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import (
    Index,
    Joining,
    Quotient,
    Remainder,
    Space,
    SplitNeeded,
)
from neuronxcc.lowering.geometry.layout import (
    Layout,
    collapsed,
    contiguous,
    is_dense,
    reshaped,
    span,
)


def value(index: Index, point: Mapping[int, int]) -> int:
    """The number an index is at a point."""
    total = index.offset
    for term, coefficient in index.terms:
        if isinstance(term, int):
            number = point[term]
        elif isinstance(term, Quotient):
            number = value(term.of, point) // term.by
        else:
            assert isinstance(term, Remainder)
            number = value(term.of, point) % term.by
        total += coefficient * number
    return total


def points(extents: Mapping[int, int]) -> list[dict[int, int]]:
    axes = list(extents)
    ranges = (range(extents[axis]) for axis in axes)
    return [dict(zip(axes, p, strict=True)) for p in itertools.product(*ranges)]


@st.composite
def shapes_of_one_size(draw: Callable[..., Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    factors = draw(st.lists(st.sampled_from((1, 2, 3, 4)), min_size=1, max_size=4))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.sets(st.integers(0, len(factors)))) | {0, len(factors)})
        return tuple(math.prod(factors[a:b]) for a, b in itertools.pairwise(cuts))

    return grouped(), grouped()


@given(shapes_of_one_size())
def test_a_reshape_finds_the_same_element(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    old, new = shapes
    extents = {axis: n for axis, n in enumerate(old) if n != 1}
    coords = tuple(ix.of_axis(axis) if n != 1 else ix.ZERO for axis, n in enumerate(old))
    found = ix.reshape(coords, old, new, Space(extents, splittable=False))
    places = np.arange(math.prod(old))
    for point in points(extents):
        here = tuple(value(c, point) for c in coords)
        there = tuple(value(c, point) for c in found)
        assert places.reshape(old)[here] == places.reshape(new)[there]
    # And back again it is what it was, however it was written down.
    back = ix.reshape(found, new, old, Space(extents, splittable=False))
    assert back == coords


def test_an_axis_is_asked_to_split_where_that_keeps_positions_affine() -> None:
    space = Space({0: 12})
    with pytest.raises(SplitNeeded) as asked:
        ix.divide(ix.of_axis(0), 4, space)
    assert (asked.value.axis, asked.value.inner) == (0, 4)
    outer, inner = ix.divide(ix.of_axis(0), 4, Space({0: 12}, splittable=False))
    assert not ix.is_affine(outer)
    assert not ix.is_affine(inner)


def test_quotient_and_remainder_make_the_whole_again() -> None:
    whole = ix.of_axis(0)
    outer, inner = ix.divide(whole, 4, Space({0: 12}, splittable=False))
    assert ix.weighted(((outer, 8), (inner, 2))) == ix.scale(whole, 2)
    assert ix.weighted(((outer, 8), (inner, 1))) != ix.scale(whole, 2)


@given(st.integers(-5, 5), st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 6))
def test_bounds_hold(offset: int, a: int, b: int, by: int) -> None:
    extents = {0: 4, 1: 3}
    inner = Index(20, ((0, 2), (1, 1)))
    parts = ((ix.of_axis(0), a), (ix.of_term(Quotient(inner, by)), b))
    index = ix.shift(ix.weighted(parts), offset)
    limits = ix.bounds(index, extents)
    assert limits is not None
    for point in points(extents):
        assert limits[0] <= value(index, point) <= limits[1]


def test_axes_join_where_all_walk_through_them_as_one() -> None:
    joining = Joining(0, 1, 4, 2)
    assert joining.fits(Index(3, ((0, 8), (1, 2))))
    assert not joining.fits(Index(3, ((0, 8), (1, 1))))
    assert joining.index(Index(3, ((0, 8), (1, 2)))) == Index(3, ((2, 2),))
    inner = ix.of_term(Quotient(Index(0, ((0, 4), (1, 1))), 3))
    assert joining.fits(inner)
    assert joining.index(inner) == ix.of_term(Quotient(Index(0, ((2, 1),)), 3))


@given(shapes_of_one_size(), st.data())
def test_strides_under_another_shape_are_those_of_numpy(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    old, new = shapes
    order = data.draw(st.permutations(range(len(old))))
    base = np.zeros([old[d] for d in order], np.int8).transpose(np.argsort(order))
    strides = reshaped(old, base.strides, new)
    view = base.view()
    try:
        view.shape = new  # refuses to copy
    except AttributeError:
        assert strides is None
        return
    assert strides is not None
    for ours, theirs, extent in zip(strides, view.strides, new, strict=True):
        assert extent == 1 or ours == theirs


def test_layouts() -> None:
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert span((2, 3), (10, 1)) == 13
    assert is_dense((2, 3, 4), (1, 8, 2))
    assert not is_dense((2, 3), (4, 1))
    assert collapsed((2, 3), (3, 1)) == 1
    assert collapsed((2, 3), (4, 1)) is None
    assert collapsed((5, 1), (7, 3)) == 7
    assert Layout((1,)).offset == 0
