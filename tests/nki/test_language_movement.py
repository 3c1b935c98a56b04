"""Functions of `nki.language` that move tiles, random numbers, and what they refuse."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.language as nl
from nki.errors import NkiError, NkiTypeError, NkiValidationError
from tests.nki.language_tools import Array, inside, run

KINDS = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8]


pytestmark = pytest.mark.usefixtures("reference_executor")


def numbers(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(seed)
    found: Array = rng.integers(0, 100, shape).astype(dtype)
    return found


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_load_and_store(shape: list[int], kind: Any, seed: int) -> None:
    x = numbers(tuple(shape), seed, kind)
    result = run(lambda t: t, x)
    np.testing.assert_array_equal(result, x if x.ndim > 1 else x[:, None])

    def cast(source: Any) -> Any:
        out = nl.ndarray(source.shape, nl.int16, nl.shared_hbm)
        nl.store(out, nl.load(source, dtype=nl.bfloat16))
        return out

    np.testing.assert_array_equal(nki.simulate(cast)(x), x.astype(np.int16))


def test_load_of_views() -> None:
    x = numbers((300, 20), 0)

    def kernel(source: Any) -> Any:
        out = nl.ndarray((128, 10), source.dtype, nl.shared_hbm)
        nl.store(out, value=nl.load(source[100:228, 0:20:2]))
        return out

    np.testing.assert_array_equal(nki.simulate(kernel)(x), x[100:228, ::2])
    with pytest.raises(NkiError, match=r"\[NKI004\]"):
        run(lambda t: t, x)


def test_load_and_store_know_their_memories() -> None:
    def load() -> Any:
        return nl.load(nl.zeros((4, 4), nl.float32))

    def store_there() -> Any:
        return nl.store(nl.zeros((4, 4), nl.float32), nl.zeros((4, 4), nl.float32))

    def store_psum() -> Any:
        return nl.store(
            nl.ndarray((4, 4), nl.float32, nl.shared_hbm),
            nl.zeros((4, 4), nl.float32, buffer=nl.psum),
        )

    def store_shape() -> Any:
        return nl.store(nl.ndarray((8, 2), nl.float32, nl.shared_hbm), nl.zeros((4, 4), nl.float32))

    with pytest.raises(NkiTypeError, match=r"nl.load src must be a tensor in hbm.*\[NKI240\]"):
        inside(load)
    with pytest.raises(NkiTypeError, match=r"nl.store dst must be a tensor in hbm.*\[NKI240\]"):
        inside(store_there)
    with pytest.raises(NkiValidationError, match=r"is in psum.*\[NKI109\]"):
        inside(store_psum)
    with pytest.raises(NkiError, match=r"shape \(4, 4\) to \(8, 2\).*\[NKI241\]"):
        inside(store_shape)


@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 200),
    columns=st.integers(1, 128),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_load_transpose2d(rows: int, columns: int, kind: Any, seed: int) -> None:
    x = numbers((rows, columns), seed, kind)

    def kernel(source: Any) -> Any:
        out = nl.ndarray((columns, rows), nl.float32, nl.shared_hbm)
        nl.store(out, nl.load_transpose2d(source, dtype=nl.float32))
        return out

    np.testing.assert_array_equal(nki.simulate(kernel)(x), x.T.astype(np.float32))


def test_matrices_have_two_dimensions() -> None:
    for function in (nl.transpose, lambda t: nl.matmul(t, t)):
        with pytest.raises(NkiError, match=r"x must have 2 dimensions, got shape \(2, 3, 4\)"):
            run(function, numbers((2, 3, 4), 0))


@settings(max_examples=10, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 128), st.integers(1, 128)),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
def test_transpose(shape: tuple[int, int], kind: Any, seed: int) -> None:
    x = numbers(shape, seed, kind)
    np.testing.assert_array_equal(run(nl.transpose, x), x.T)
    assert run(lambda t: nl.transpose(t, nl.float16), x).dtype == np.float16
    assert inside(lambda: nl.transpose(nl.zeros((4, 8), nl.float32)).buffer) is nl.psum


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 128), st.integers(1, 128), st.integers(1, 300)),
    kind=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    seed=st.integers(0, 99),
)
def test_matmul(sizes: tuple[int, int, int], kind: Any, seed: int) -> None:
    m, k, n = sizes
    x, y = numbers((m, k), seed, kind), numbers((k, n), seed + 1, kind)
    # Whole numbers below 100: every product and sum is exact.
    want = x.astype(np.float64) @ y.astype(np.float64)
    np.testing.assert_array_equal(run(nl.matmul, x, y), want)
    across = np.ascontiguousarray(x.T)
    np.testing.assert_array_equal(
        run(lambda a, b: nl.matmul(a, b, transpose_x=True), across, y), want
    )


def test_limits_of_matmul() -> None:
    def body(x: tuple[int, int], y: tuple[int, int], *, transpose: bool = True) -> Any:
        a, b = nl.zeros(x, nl.bfloat16), nl.zeros(y, nl.bfloat16)
        return nl.matmul(a, b, transpose_x=transpose)

    with pytest.raises(NkiValidationError, match=r"x has a free dimension of 129.*\[NKI121\]"):
        inside(lambda: body((64, 129), (64, 8)))
    with pytest.raises(NkiValidationError, match=r"y has a free dimension of 513.*\[NKI122\]"):
        inside(lambda: body((64, 128), (64, 513)))
    with pytest.raises(NkiValidationError, match=r"\[NKI120\]"):
        inside(lambda: body((64, 8), (32, 8)))
    found = inside(lambda: body((64, 128), (64, 512)))
    assert (found.shape, found.dtype, found.buffer) == ((128, 512), nl.float32, nl.psum)


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    partitions=st.integers(1, 128),
    ones=st.sets(st.integers(0, 3)),
    kind=st.sampled_from(KINDS),
)
def test_broadcast_to(shape: list[int], partitions: int, ones: set[int], kind: Any) -> None:
    sizes = (partitions, *shape[1:])
    x = numbers(tuple(1 if d in ones else n for d, n in enumerate(sizes)), 0, kind)
    result = run(lambda t: nl.broadcast_to(t, sizes), x)
    np.testing.assert_array_equal(result, np.broadcast_to(x, sizes))
    assert run(lambda t: nl.broadcast_to(t, sizes, nl.float16), x).dtype == np.float16


def _broadcast(shape: tuple[int, ...]) -> Any:
    return nl.broadcast_to(nl.zeros((4, 3), nl.float32), shape)


def test_broadcast_to_what_it_is_or_cannot_be() -> None:
    def same() -> Any:
        tile = nl.zeros((4, 3), nl.float32)
        return nl.broadcast_to(tile, (4, 3)) is tile

    assert inside(same)
    for shape in ((4, 6), (1, 4, 3), (4,), (8, 3)):
        with pytest.raises(NkiError, match=r"cannot repeat a tile of shape \(4, 3\).*\[NKI241\]"):
            inside(functools.partial(_broadcast, shape))


def test_broadcast_of_psum() -> None:
    def body(x: Any) -> Any:
        product = nl.matmul(x, x, transpose_x=True)
        return nl.broadcast_to(product, (128, product.shape[1]))

    x = numbers((16, 1), 0)
    np.testing.assert_array_equal(run(body, x), np.full((128, 1), (x.T @ x)[0, 0]))


@settings(max_examples=10, deadline=None)
@given(
    partitions=st.integers(1, 128),
    free=st.integers(1, 40),
    wanted=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    kind=st.sampled_from(KINDS),
    index=st.sampled_from([np.uint32, np.int32, np.uint16]),
)
def test_gather_flattened(
    partitions: int, free: int, wanted: tuple[int, int], kind: Any, index: Any
) -> None:
    x = numbers((partitions, free, 2), 0, kind)
    indices = np.random.default_rng(1).integers(0, 2 * free, (partitions, *wanted)).astype(index)
    want = np.take_along_axis(x.reshape(partitions, -1), indices.reshape(partitions, -1), 1)
    result = run(nl.gather_flattened, x, indices)
    np.testing.assert_array_equal(result, want.reshape(indices.shape))


def test_gather_flattened_refuses() -> None:
    x, indices = numbers((4, 4), 0), numbers((4, 2), 1, np.uint32)
    with pytest.raises(NkiError, match=r"holds \d+, but there are 4 elements.*\[NKI132\]"):
        run(nl.gather_flattened, x, indices + 4)
    with pytest.raises(NkiError, match=r"cannot gather along axis 1.*\[NKI242\]"):
        run(lambda a, b: nl.gather_flattened(a, b, axis=1), x, indices)
    with pytest.raises(NkiTypeError, match=r"indices must be integer, got float32.*\[NKI240\]"):
        run(nl.gather_flattened, x, x)


@settings(max_examples=15, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 128), st.integers(1, 20)),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    mask=st.sampled_from([np.float32, ml_dtypes.bfloat16, np.uint8, np.int32]),
    seed=st.integers(0, 99),
)
def test_where(shape: tuple[int, int], kinds: tuple[Any, Any], mask: Any, seed: int) -> None:
    x, y = (numbers(shape, seed + i, kind) for i, kind in enumerate(kinds))
    condition = (numbers(shape, seed + 2) > 50).astype(mask)
    chosen = condition != 0
    result = run(nl.where, condition, x, y)
    wide = np.where(chosen, x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(result.astype(np.float32), wide)
    number = run(lambda c, t: nl.where(c, t, -1.0, dtype=nl.float32), condition, x)
    np.testing.assert_array_equal(number, np.where(chosen, x.astype(np.float32), -1))
    both = run(lambda c: nl.where(c, 2.0, 3.0, dtype=nl.float32), condition)
    np.testing.assert_array_equal(both, np.where(chosen, 2.0, 3.0))


def test_where_takes_tiles_of_one_shape() -> None:
    with pytest.raises(NkiError, match=r"nl.where takes tiles of one shape.*\[NKI241\]"):
        run(nl.where, numbers((4, 4), 0), numbers((4, 1), 1), numbers((4, 4), 2))
    with pytest.raises(NkiTypeError, match=r"nl.where x must be a tile, got str"):
        run(lambda c: nl.where(c, "a", 1.0), numbers((4, 4), 0))


def test_copy_keeps_every_bit() -> None:
    x = np.array([[2**24 + 1, -(2**31)]], np.int32)
    np.testing.assert_array_equal(run(nl.copy, x), x)

    def body(t: Any) -> Any:
        copied = nl.copy(nl.matmul(t, t, transpose_x=True))
        assert copied.buffer is nl.sbuf
        return copied

    y = numbers((8, 4), 0)
    np.testing.assert_array_equal(run(body, y), y.T @ y)


def test_assignment_copies_tiles() -> None:
    def kernel(source: Any) -> Any:
        out = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
        kept = nl.ndarray((128, 3, 20), source.dtype)
        for i in range(3):
            kept[0:128, i, 0:20] = nl.load(source[i])
        for i in range(3):
            out[i] = kept[0:128, 2 - i, 0:20]
        return out

    x = numbers((3, 128, 20), 0)
    np.testing.assert_array_equal(nki.simulate(kernel)(x), x[::-1])


def test_assignment_with_an_operator_is_refused() -> None:
    tile = nl.ndarray((4, 6), nl.float32)
    with pytest.raises(NkiTypeError, match=r"x \+ y was written.*\[NKI244\]"):
        tile[...] += tile  # type: ignore[operator]


# --- random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.shared_hbm])
def test_rand(target: str, buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    shape = (96, 50) if buffer is not nl.shared_hbm else (3, 333, 7)

    def kernel(source: Any) -> Any:
        del source
        drawn = nl.rand(shape, nl.float32, buffer, "drawn")
        assert (drawn.shape, drawn.buffer, drawn.name) == (shape, buffer, "drawn")
        if buffer is nl.shared_hbm:
            return drawn
        out = nl.ndarray(shape, nl.float32, nl.shared_hbm)
        nl.store(out, nl.copy(drawn))
        return out

    drawn = nki.simulate(kernel)(np.zeros(1, np.float32))
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    # The mean of n numbers is 1/2 within 6 standard deviations.
    assert abs(drawn.mean() - 0.5) < 6 / np.sqrt(12 * drawn.size)
    assert np.unique(drawn).size > 0.9 * drawn.size


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_random_seed(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)

    def body() -> Any:
        seed = nl.full((1, 1), 42, dtype=nl.int32)
        nl.random_seed(seed)
        a = nl.rand((128, 16), nl.float32)
        b = nl.rand((128, 16), nl.float32)
        nl.random_seed(seed)
        c = nl.rand((128, 16), nl.float32)
        return bool(nl.equal(a, c)), bool(nl.equal(a, b))

    assert inside(body) == (True, False)
    with pytest.raises(NkiTypeError, match=r"seed must be a tile of shape \(1, 1\), got 42.*full"):
        nl.random_seed(42)  # type: ignore[arg-type]


def test_dropout() -> None:
    x = np.full((128, 200), 3.0, np.float32)
    result = run(lambda t: nl.dropout(t, 0.25), x)
    assert set(np.unique(result)) == {0.0, 3.0}
    assert abs((result == 0).mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / x.size)
    rates = np.repeat(np.array([[0.0], [1.0]], np.float32), 64, axis=0)
    result = run(nl.dropout, x, rates)
    np.testing.assert_array_equal(result, x * (1 - rates))
    assert run(lambda t: nl.dropout(t, 0.5, nl.bfloat16), x).dtype == ml_dtypes.bfloat16
    with pytest.raises(NkiValidationError, match=r"between 0 and 1, got 1.5.*\[NKI116\]"):
        run(lambda t: nl.dropout(t, 1.5), x)
