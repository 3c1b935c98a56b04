"""Sums over loops: what `nl.loop_reduce` and `+=` in PSUM add up, in nests of loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.errors import NkiError
from tests.nki.compat.compat_tools import Array, close, random, summed

P, F = 8, 4

# Operators with two names, their meaning, and what changes nothing; integers for those of bits.
OPS: dict[str, tuple[Any, Any, Callable[[Any, Any], Any], type]] = {
    "add": (np.add, nl.add, np.add, np.float32),
    "multiply": (np.multiply, nl.multiply, np.multiply, np.float32),
    "maximum": (np.maximum, nl.maximum, np.maximum, np.float32),
    "minimum": (np.minimum, nl.minimum, np.minimum, np.float32),
    "subtract": (np.subtract, nl.subtract, np.subtract, np.float32),
    "bitwise_or": (np.bitwise_or, nl.bitwise_or, np.bitwise_or, np.int32),
    "bitwise_and": (np.bitwise_and, nl.bitwise_and, np.bitwise_and, np.int32),
    "bitwise_xor": (np.bitwise_xor, nl.bitwise_xor, np.bitwise_xor, np.int32),
}

# Rows and columns that turn number n of the reduction takes part in.
MASKS: dict[str, Callable[[int, Any, Any], Any]] = {
    "none": lambda n, p, f: None,
    "rows": lambda n, p, f: p < P - n,
    "columns": lambda n, p, f: f >= n % F,
    "triangle": lambda n, p, f: f <= p + n - 2,
    "later rows": lambda n, p, f: p < 2 + 3 * n,
    "nothing at first": lambda n, p, f: p < P * min(n, 1),
}  # fmt: skip


def numbers(op: str, *shape: int) -> Array:
    rng = np.random.default_rng(sum(shape))
    if OPS[op][3] is np.int32:
        return rng.integers(0, 1 << 20, shape).astype(np.int32)
    return np.asarray(rng.random(shape) + 0.5, np.float32)


def expected(op: str, turns: list[Array], masks: list[Array], start: Array | None) -> Array:
    """Reduce turn after turn, element by element; where none takes part there is `start` or 0."""
    out = np.zeros((P, F), turns[0].dtype) if start is None else start.copy()
    for p, f in np.ndindex(P, F):
        values = [t[p, f] for t, m in zip(turns, masks, strict=True) if m[p, f]]
        if start is not None:
            values.insert(0, start[p, f])
        if values:
            out[p, f] = reduce(OPS[op][2], values)
    return out


def mask_values(name: str, count: int) -> list[Array]:
    rows, columns = np.arange(P)[:, None], np.arange(F)[None, :]
    found = [MASKS[name](n, rows, columns) for n in range(count)]
    return [np.broadcast_to(True if m is None else m, (P, F)) for m in found]


def nest(sizes: list[int], at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Iterate over all turns of loops, as loops within loops do."""
    if not sizes:
        yield at
        return
    for i in nl.affine_range(sizes[0]):
        yield from nest(sizes[1:], (*at, i))


def tiles_for(place: str, outer: list[int], begin: Any) -> Callable[..., tuple[Any, Any]]:
    """Return a function from the indices of outer loops to a tensor, and what is reduced to."""
    p, f = nl.arange(P)[:, None], nl.arange(F)[None, :]
    kind = begin.dtype
    if place == "blocks":
        blocks = nl.ndarray((*outer, nl.par_dim(P), F), dtype=kind)
        return lambda o: (blocks, (*o, p, f))
    if place == "made inside":
        return lambda o: (nl.ndarray((P, F), dtype=kind), (p, f))
    if place == "begun inside":
        return lambda o: (nl.load(begin), (p, f))
    tile = nl.ndarray((P, 3 * F), dtype=kind)
    return lambda o: (tile, (p, f if place == "tile" else 2 * f))


NESTS = {
    "op": st.sampled_from(sorted(OPS)),
    "spelling": st.integers(0, 2),
    "outer": st.lists(st.integers(1, 3), max_size=2),
    "inner": st.lists(st.integers(1, 3), min_size=1, max_size=2),
    "mask": st.sampled_from(sorted(MASKS)),
}


@given(**NESTS, place=st.sampled_from(["blocks", "tile", "part", "made inside", "begun inside"]))
@settings(max_examples=60, deadline=None)
def test_a_reduction_begins_anew_in_every_turn_of_the_loops_around(
    op: str, spelling: int, outer: list[int], inner: list[int], mask: str, place: str
) -> None:
    name, count = (*OPS[op][:2], op)[spelling], math.prod(inner)

    @nki.jit
    def kernel(a: Any, begin: Any) -> Any:
        out = nl.ndarray((*outer, P, F), dtype=a.dtype, buffer=nl.shared_hbm)
        p, f = nl.arange(P)[:, None], nl.arange(F)[None, :]
        tile_for = tiles_for(place, outer, begin)
        for o in nest(outer):
            tile, at = tile_for(o)
            for number, i in enumerate(nest(inner)):
                x = nl.load(a[(*o, *i)])
                mask_ = MASKS[mask](number, p, f)
                tile[at] = nl.loop_reduce(x, op=name, loop_indices=i, mask=mask_)
            nl.store(out[(*o,)], nl.full((P, F), 0, dtype=a.dtype))
            masks = [MASKS[mask](number, p, f) for number in range(count)]
            for written in [None] if place == "begun inside" else masks:
                nl.store(out[(*o, p, f)], tile[at], mask=written)
        return out

    a, begun = numbers(op, *outer, *inner, P, F), numbers(op, P, F)
    masks = mask_values(mask, count)
    got = kernel(a, begun)
    for o in itertools.product(*map(range, outer)):
        turns = list(a[o].reshape(-1, P, F))
        want = expected(op, turns, masks, begun if place == "begun inside" else None)
        np.testing.assert_array_equal(got[o], want)


@given(**NESTS)
@settings(max_examples=30, deadline=None)
def test_a_reduction_to_a_name_needs_no_tile_to_begin_with(
    op: str, spelling: int, outer: list[int], inner: list[int], mask: str
) -> None:
    name = (*OPS[op][:2], op)[spelling]

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((*outer, P, F), dtype=a.dtype, buffer=nl.shared_hbm)
        p, f = nl.arange(P)[:, None], nl.arange(F)[None, :]
        for o in nest(outer):
            for number, i in enumerate(nest(inner)):
                total = nl.loop_reduce(
                    nl.load(a[(*o, *i)]), op=name, loop_indices=i, mask=MASKS[mask](number, p, f)
                )
            nl.store(out[(*o,)], total)
        return out

    a = numbers(op, *outer, *inner, P, F)
    masks, last = mask_values(mask, math.prod(inner)), np.zeros((P, F), a.dtype)
    got = kernel(a)
    for o in itertools.product(*map(range, outer)):
        want = expected(op, list(a[o].reshape(-1, P, F)), masks, None)
        # One tile for all turns of the outer loops: what none writes stays.
        last = np.where(np.any(masks, axis=0), want, last)
        np.testing.assert_array_equal(got[o], last)


@pytest.mark.parametrize("source", ["sbuf", "psum"])
@pytest.mark.parametrize("dtype", [None, nl.float32, nl.bfloat16])
@pytest.mark.parametrize("named", [False, True])
def test_types_of_a_reduction(source: str, dtype: Any, named: bool) -> None:
    @nki.jit
    def kernel(a: Any, ones: Any) -> Any:
        out = nl.ndarray((2, P, F), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((2, nl.par_dim(P), F), dtype=nl.float32)
        best = nl.ndarray((P, F), dtype=nl.float32)
        for i in nl.affine_range(2):
            for j in nl.affine_range(3):
                x = nl.load(a[i, j])
                if source == "psum":
                    x = nisa.nc_matmul(nl.load(ones), x)
                if named:
                    best = nl.loop_reduce(x, np.add, loop_indices=[j], dtype=dtype)
                else:
                    total[i] = nl.loop_reduce(x, np.add, loop_indices=[j], dtype=dtype)
            nl.store(out[i], nl.copy(best if named else total[i], dtype=nl.float32))
        return out

    a = random(2, 3, P, F)
    kind = np.float32 if dtype is None else dtype
    want = a[:, 0].astype(kind)
    for part in (1, 2):
        # With another type for the name there is a tile of that type, else the sum is assigned.
        want = (want.astype(np.float32) + a[:, part]).astype(kind)
    np.testing.assert_array_equal(kernel(a, np.eye(P, dtype=np.float32)), want.astype(np.float32))


def test_a_second_loop_goes_on_where_the_first_ended() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        total = nl.ndarray((P, F), dtype=a.dtype)

        def add(x: Any) -> None:
            for i in nl.affine_range(3):
                total[...] = nl.loop_reduce(nl.load(x[i]), np.add, loop_indices=[i])

        add(a)
        add(b)
        total[0:2, :] = 0.5  # what another instruction writes is where the next one begins
        add(a)
        for i in range(2):  # a number of Python says nothing of loops
            total[...] = nl.loop_reduce(nl.load(b[i]), np.add, loop_indices=[i])
        return total

    a, b = random(3, P, F), random(3, P, F, seed=1)
    want = a[0].copy()
    for part in (a[1], a[2], b[0], b[1], b[2]):
        want = want + part
    want[:2] = 0.5
    for part in (a[0], a[1], a[2], b[0], b[1]):
        want = want + part
    np.testing.assert_array_equal(kernel(a, b), want)


def test_a_reduction_to_nothing_of_the_kind() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        made: Any = 3
        for i in nl.affine_range(2):
            made = nl.loop_reduce(nl.load(a), np.add, loop_indices=[i])
        return made

    with pytest.raises(NkiError, match=r"nl.loop_reduce was assigned to a int; .*NKI268"):
        kernel(random(P, F))


@given(
    outer=st.integers(1, 3),
    inner=st.integers(1, 3),
    place=st.sampled_from(["zeros", "ndarray", "blocks"]),
    cut=st.integers(0, 3),
    late=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_products_are_summed_over_loops(
    outer: int, inner: int, place: str, cut: int, late: bool
) -> None:
    """Sums in PSUM need no zeros to begin with."""
    depth, rows, columns = 16, 8, 12

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((outer, rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
        i_k = nl.arange(depth)[:, None]
        blocks = nl.ndarray((outer, nl.par_dim(rows), columns), nl.float32, buffer=nl.psum)
        sums = []
        for i in nl.affine_range(outer):
            make = nl.zeros if place == "zeros" else nl.ndarray
            psum = make((rows, columns), dtype=nl.float32, buffer=nl.psum)
            sums.append(blocks[i] if place == "blocks" else psum)
            for j in nl.affine_range(inner):
                x, y = nl.load(a[i, j]), nl.load(b[j])
                sums[i][...] += nisa.nc_matmul(x, y, mask=i_k < depth - cut * j)
            if not late:
                nl.store(out[i], sums[i])
        for i in nl.affine_range(outer if late else 0):
            nl.store(out[i], sums[i])
        return out

    a, b = random(outer, inner, depth, rows), random(inner, depth, columns, seed=1)
    got = kernel(a, b)
    for i in range(outer):
        cuts = [np.s_[: depth - cut * j] for j in range(inner)]
        want = sum(a[i, j, c].astype(float).T @ b[j, c] for j, c in enumerate(cuts))
        close(got[i], np.asarray(want), rounded=summed(depth * inner))
