"""Tiles of one size beside larger ones, in the element-wise instructions of two tiles."""

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
from tests.nki.compat.compat_tools import Array, random, returning


@st.composite
def pairs(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw shapes of two tiles with the same partitions whose free dimensions broadcast."""
    free = tuple(draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3))))
    shapes = []
    for _ in range(2):
        dims = tuple(1 if draw(st.booleans()) else n for n in free)
        shapes.append((5, *dims[draw(st.integers(0, len(dims) - 1)) :]))
    return shapes[0], shapes[1]


def behind_the_partition(array: Array, rank: int) -> Array:
    """Return an array with dimensions of size 1 inserted after the first one."""
    return array.reshape(array.shape[0], *[1] * (rank - array.ndim), *array.shape[1:])


@given(shapes=pairs(), memory=st.sampled_from(["sbuf", "psum", "view"]))
@settings(max_examples=100, deadline=None)
def test_free_dimensions_of_size_one_are_repeated(shapes: Any, memory: str) -> None:
    """A dimension that a tile does not have counts as 1, behind the partition."""
    a, b = (random(*shape, seed=k) for k, shape in enumerate(shapes))
    rank = max(a.ndim, b.ndim)
    same = np.prod(a.shape[1:]) == np.prod(b.shape[1:])
    x, y = (behind_the_partition(c, rank) for c in (a, b))
    if same:  # each element of one belongs to one of the other
        y = y.reshape(x.shape)

    def compute(x: Any, y: Any) -> Any:
        if memory == "psum":
            moved = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.psum)
            moved[...] = x
            x = moved
        elif memory == "view":
            wide = nl.zeros((*y.shape, 2), dtype=y.dtype)
            part = (slice(None),) * len(y.shape)
            wide[(*part, 1)] = y
            y = wide[(*part, 1)]
        difference = nisa.tensor_tensor(x, y, op=np.subtract)
        both = nisa.scalar_tensor_tensor(
            data=x, op0=np.multiply, operand0=2.0, op1=np.add, operand1=y
        )
        return difference, both

    difference, both = returning(compute)(a, b)
    np.testing.assert_array_equal(difference, (x - y).reshape(difference.shape))
    np.testing.assert_array_equal(both, (2 * x + y).reshape(both.shape))


def test_a_mask_is_for_the_larger_shape() -> None:
    a, b = random(8, 3, 6), random(8, 1, seed=1)

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        p, x, y = nl.mgrid[0:8, 0:3, 0:6]
        tile = nl.zeros(a.shape, dtype=a.dtype)
        tile[...] = 9.0
        tile[p, x, y] = nisa.tensor_tensor(
            nl.load(a), nl.load(b), op=np.add, mask=(x < 2) & (y >= 1)
        )
        nl.store(out, tile)
        return out

    want = np.full_like(a, 9)
    want[:, :2, 1:] = (a + b[:, None])[:, :2, 1:]
    np.testing.assert_array_equal(kernel(a, b), want)


@pytest.mark.parametrize(
    ("x", "y"), [((8, 6), (8, 4)), ((8, 6), (1, 6)), ((8, 4, 6), (8, 4)), ((8, 4, 6), (1, 1))]
)
def test_what_does_not_fit_is_refused(x: Any, y: Any) -> None:
    """Partitions are not repeated: nl.broadcast_to copies to them."""
    kernel = returning(lambda a, b: nisa.tensor_tensor(a, b, op=np.add))
    with pytest.raises(
        NkiError, match=r"elements per partition.*NKI106|has 8 partitions and data2 has 1.*NKI105"
    ):
        kernel(random(*x), random(*y))
