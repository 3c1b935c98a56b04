"""Instructions under generated masks: what is masked off is not written, everything else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.errors import NkiIndexError
from tests.nki.compat.compat_tools import Array, close, random, summed

P, F = 40, 6
ROWS, COLUMNS = np.arange(P)[:, None], np.arange(F)[None, :]

# Comparisons of the two indices, as text that both nl and NumPy understand.
TERMS = st.sampled_from(
    ["p < 40", "p < 17", "p >= 33", "p >= 5", "f < 6", "f < 2", "f >= 1", "f == 3", "p % 2 == 0",
     "f <= p", "p + f < 20", "p - 8 * f > 0", "f != 2", "p < 0"]
)  # fmt: skip
MASKS = st.lists(TERMS, min_size=1, max_size=2)


def mask_of(terms: list[str], p: Any, f: Any) -> Any:
    total = eval(terms[0], {"p": p, "f": f})  # noqa: S307 (the texts above)
    for term in terms[1:]:
        total = total & eval(term, {"p": p, "f": f})  # noqa: S307
    return total


def truth(terms: list[str]) -> Array:
    return np.broadcast_to(mask_of(terms, ROWS, COLUMNS), (P, F))


OPERATIONS: dict[str, Any] = {
    "load": (lambda a, b, m: nl.load(a, mask=m), lambda a, b: a),
    "activation": (lambda a, b, m: nl.square(nl.load(a), mask=m), lambda a, b: a * a),
    "add": (lambda a, b, m: nl.add(nl.load(a), nl.load(b), mask=m), lambda a, b: a + b),
    "number": (lambda a, b, m: nl.multiply(nl.load(a), 2.0, mask=m), lambda a, b: a * 2),
    "copy": (lambda a, b, m: nl.copy(nl.load(a), mask=m), lambda a, b: a),
    "memset": (
        lambda a, b, m: nisa.memset((P, F), 3.0, nl.float32, mask=m),
        lambda a, b: 0 * a + 3,
    ),
    "where": (
        lambda a, b, m: nl.where(nl.load(a) > nl.load(b), nl.load(a), nl.load(b), mask=m),
        np.maximum,
    ),
    "select": (
        lambda a, b, m: nisa.affine_select(
            nl.arange(F)[None, :] < nl.arange(P)[:, None], nl.load(a), -1.0, mask=m
        ),
        lambda a, b: np.where(COLUMNS < ROWS, a, np.float32(-1)),
    ),
    "iota": (
        lambda a, b, m: nisa.iota(
            nl.arange(P)[:, None] + nl.arange(F)[None, :], nl.float32, mask=m
        ),
        lambda a, b: (ROWS + COLUMNS).astype(np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
@given(terms=MASKS)
@settings(max_examples=8)
def test_assignments_keep_what_is_masked_off(name: str, terms: list[str]) -> None:
    operate, numpy = OPERATIONS[name]

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((P, F), dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.full((P, F), 7.0, dtype=a.dtype)
        p, f = nl.mgrid[0:P, 0:F]
        tile[p, f] = operate(a, b, mask_of(terms, p, f))
        nl.store(out, tile)
        return out

    a, b = random(P, F), random(P, F, seed=1)
    np.testing.assert_array_equal(kernel(a, b), np.where(truth(terms), numpy(a, b), np.float32(7)))


@given(terms=MASKS, through_a_name=st.booleans())
@settings(max_examples=20)
def test_stores_keep_what_is_masked_off(terms: list[str], through_a_name: bool) -> None:
    @nki.jit
    def kernel(a: Any, out: Any) -> None:
        p, f = nl.arange(P)[:, None], nl.arange(F)[None, :]
        mask = mask_of(terms, p, f)
        if through_a_name:
            made = nl.square(nl.load(a), mask=mask)
            nl.store(out, made)
        else:
            nl.store(out[p, f], nl.square(nl.load(a)), mask=mask)

    a, out = random(P, F), np.full((P, F), 7, np.float32)
    kernel(a, out)
    np.testing.assert_array_equal(out, np.where(truth(terms), a * a, np.float32(7)))


DESTINATIONS: dict[str, Any] = {
    "predicated": lambda dst, a, b, m: nisa.tensor_copy_predicated(
        src=a, dst=dst, predicate=nl.less(a, b), mask=m
    ),
    "select": lambda dst, a, b, m: nisa.select_reduce(
        dst=dst, predicate=nl.less(a, b), on_true=a, on_false=0.5, mask=m
    ),
    "cumulative": lambda dst, a, b, m: nisa.tensor_copy_dynamic_dst(dst=dst, src=a, mask=m),
    "shuffle": lambda dst, a, b, m: nisa.nc_stream_shuffle(
        src=a, dst=dst, shuffle_mask=list(range(32)), mask=m
    ),
}


@pytest.mark.parametrize("name", DESTINATIONS)
@given(terms=MASKS)
@settings(max_examples=8)
def test_named_destinations_keep_what_is_masked_off(name: str, terms: list[str]) -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        tile = nl.full((P, F), 7.0, dtype=a.dtype)
        p, f = nl.mgrid[0:P, 0:F]
        DESTINATIONS[name](tile, nl.load(a), nl.load(b), mask_of(terms, p, f))
        return tile

    a, b = random(P, F), random(P, F, seed=1)
    want = {
        "predicated": np.where(a < b, a, np.float32(7)),
        "select": np.where(a < b, a, np.float32(0.5)),
        "cumulative": a,
        "shuffle": a,
    }[name]
    np.testing.assert_array_equal(kernel(a, b), np.where(truth(terms), want, np.float32(7)))


@given(terms=MASKS, op=st.sampled_from(["max", "min", "sum"]))
@settings(max_examples=25)
def test_reductions_leave_out_what_is_masked_off(terms: list[str], op: str) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        tile = nl.full((P, 1), 7.0, dtype=a.dtype)
        p, f = nl.mgrid[0:P, 0:F]
        tile[:, :] = getattr(nl, op)(nl.load(a), axis=[1], mask=mask_of(terms, p, f))
        return tile

    a, inside = random(P, F), truth(terms)
    neutral = {"max": -np.inf, "min": np.inf, "sum": 0}[op]
    reduced = getattr(np, op)(np.where(inside, a.astype(float), neutral), axis=1)
    want = np.where(inside.any(axis=1), reduced, 7)[:, None]
    close(kernel(a), want, rounded=F + 1)


@given(rows=st.integers(1, 24), columns=st.integers(1, 24), size=st.integers(1, 9))
@settings(max_examples=20)
def test_the_last_tiles_of_a_loop_are_cut(rows: int, columns: int, size: int) -> None:
    """The documented use: the tile size does not divide the tensor."""

    @nki.jit
    def kernel(a: Any) -> Any:
        n, m = a.shape
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(-(-n // size)):
            for j in nl.affine_range(-(-m // size)):
                p, f = nl.mgrid[0:size, 0:size]
                mask = (i * size + p < n) & (j * size + f < m)
                tile = nl.load(a[i * size + p, j * size + f], mask=mask)
                nl.store(out[i * size + p, j * size + f], value=tile + tile, mask=mask)
        return out

    a = random(rows, columns)
    np.testing.assert_array_equal(kernel(a), a + a)


@pytest.mark.parametrize("case", ["contraction", "three axes", "operands", "nothing"])
def test_masks_of_products(case: str) -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, y = nl.load(a), nl.load(b)
        k, m, n = nl.mgrid[0:16, 0:8, 0:12]
        psum = nl.zeros((8, 12), dtype=nl.float32, buffer=nl.psum)
        if case == "contraction":
            psum += nisa.nc_matmul(x, y, mask=nl.arange(16)[:, None] < 9)
        elif case == "three axes":
            psum += nisa.nc_matmul(x, y, mask=(k < 9) & (m < 5) & (n < 7))
        elif case == "operands":
            i_m, i_n = nl.arange(8)[None, :], nl.arange(12)[None, :]
            psum[0:5, 0:7] += nl.matmul(x[i_m < 5], y[i_n < 7], transpose_x=True)
        else:
            psum += nisa.nc_matmul(x, y, mask=k < 0)
            psum += nisa.nc_matmul(x, y, mask=False)
        out = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, psum)
        return out

    a, b = random(16, 8), random(16, 12, seed=1)
    rows = 16 if case == "operands" else 0 if case == "nothing" else 9
    want = a[:rows].astype(float).T @ b[:rows]
    if case in ("three axes", "operands"):
        want[5:], want[:, 7:] = 0, 0
    close(kernel(a, b), want, rounded=summed(16))


# Instructions of parts x and y of (16, 8) and of one column z, of tensors that end before.
BEYOND: dict[str, tuple[Any, Any]] = {
    "activation": (lambda x, y, z, m: nisa.activation(nl.relu, x, bias=z, mask=m),
                   lambda x, y, z: np.maximum(x + z, 0)),
    "add": (lambda x, y, z, m: nl.add(x, y, mask=m), lambda x, y, z: x + y),
    "add a column": (lambda x, y, z, m: nl.add(x, z, mask=m), lambda x, y, z: x + z),
    "copy": (lambda x, y, z, m: nl.copy(x, mask=m), lambda x, y, z: x),
    "memory": (lambda x, y, z, m: nl.load(x, mask=m), lambda x, y, z: x),
    "scalar": (lambda x, y, z, m: nisa.tensor_scalar(x, np.multiply, z, mask=m),
               lambda x, y, z: x * z),
    "three": (lambda x, y, z, m: nisa.scalar_tensor_tensor(
                  data=x, op0=np.multiply, operand0=z, op1=np.add, operand1=y, mask=m),
              lambda x, y, z: x * z + y),
    "tensor": (lambda x, y, z, m: nisa.tensor_tensor(x, y, np.maximum, mask=m),
               lambda x, y, z: np.maximum(x, y)),
    "reciprocal": (lambda x, y, z, m: nisa.reciprocal(x, mask=m), lambda x, y, z: 1 / x),
    "largest": (lambda x, y, z, m: nl.max(x, axis=[1], keepdims=True, mask=m),
                lambda x, y, z: x.max(axis=1, keepdims=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
@given(rows=st.integers(1, 16), columns=st.integers(1, 8), memory=st.sampled_from(["sbuf", "hbm"]))
@settings(max_examples=6, deadline=None)
def test_operands_may_leave_their_tensors_where_a_mask_leaves_them_out(
    name: str, rows: int, columns: int, memory: str
) -> None:
    """As the last tile of a loop does, also where it is written to."""
    operate, numpy = BEYOND[name]

    @nki.jit
    def kernel(a: Any, b: Any, c: Any) -> Any:
        x, y, z = (t if memory == "hbm" else nl.load(t) for t in (a, b, c))
        p, f = nl.arange(16)[:, None], nl.arange(8)[None, :]
        width = 1 if name == "largest" else columns
        out = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((rows, width), dtype=nl.float32)
        mask = (p < rows) & (f < columns)
        made = operate(x[p, f], y[p, f], z[p, 0], mask)
        if name == "largest":
            nl.store(out[p, 0], made, mask=p < rows)
            return out
        tile[p, f] = made
        nl.store(out[p, f], tile[p, f], mask=mask)
        return out

    a, b, c = (random(rows, n, seed=n) + np.float32(0.5) for n in (columns, columns, 1))
    b = random(rows, columns, seed=99)
    close(kernel(a, b, c), numpy(*(x.astype(float) for x in (a, b, c))), rounded=4)


@given(depth=st.integers(1, 16), rows=st.integers(1, 8), columns=st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_operands_of_a_product_may_leave_their_tensors(depth: int, rows: int, columns: int) -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, y = nl.load(a), nl.load(b)
        k, m, n = nl.arange(16)[:, None], nl.arange(8)[None, :], nl.arange(12)[None, :]
        psum = nl.zeros((8, 12), dtype=nl.float32, buffer=nl.psum)
        mask = (depth - 1 - k >= 0) & (m < rows) & (columns - 1 - n >= 0)
        psum[...] += nisa.nc_matmul(x[k, m], y[k, n], mask=mask)
        out = nl.ndarray((8, 12), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, psum)
        return out

    a, b = random(depth, rows), random(depth, columns, seed=1)
    want = np.zeros((8, 12))
    want[:rows, :columns] = a.astype(float).T @ b
    close(kernel(a, b), want, rounded=summed(depth))


def test_an_operand_that_leaves_its_tensor_where_the_mask_holds() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        x, f = nl.load(a), nl.arange(16)[None, :]
        return nl.exp(x[nl.arange(8)[:, None], f], mask=f < 12)

    with pytest.raises(NkiIndexError, match=r"from 0 to 11 is out of bounds for dimension 1 of"):
        kernel(random(8, 10))


K, M, N = 16, 8, 12

# Masks of products: what nl is given, and which (contraction, stationary, moving) take part.
k_, m_, n_ = np.ogrid[0:K, 0:M, 0:N]
PRODUCT_MASKS: dict[str, tuple[Any, Any]] = {
    "contraction": (lambda: nl.arange(K)[:, None] < 9, k_ < 9),
    "rows of a grid": (lambda: nl.mgrid[0:K, 0:5].p < 9, k_ < 9),
    "every other row": (lambda: nl.arange(K)[:, None] % 2 == 0, k_ % 2 == 0),
    "moving alone": (lambda: 10 - nl.arange(N)[None, :] >= 4, n_ <= 6),
    "moving of a grid": (lambda: nl.mgrid[0:K, 0:N].x >= 3, n_ >= 3),
    "stationary alone": (lambda: nl.arange(M)[None, :] < 5, m_ < 5),
    "both operands": (
        lambda: (nl.arange(M)[None, :] < 5) & (nl.arange(N)[None, :] >= 2), (m_ < 5) & (n_ >= 2),
    ),
    "all": (
        lambda: (nl.arange(K)[:, None] >= 3) & (nl.arange(M)[None, :] < 7)
        & (nl.arange(N)[None, :] < 9),
        (k_ >= 3) & (m_ < 7) & (n_ < 9),
    ),
    "rows of the result": (lambda: nl.mgrid[0:M, 0:N].p < 6, m_ < 6),
    "the result": (
        lambda: (nl.arange(M)[:, None] >= 2) & (nl.arange(N)[None, :] < 7), (m_ >= 2) & (n_ < 7),
    ),
    "a triangle of moving": (
        lambda: nl.arange(K)[:, None] >= nl.arange(N)[None, :], k_ >= n_,
    ),
    "a triangle of stationary": (
        lambda: nl.arange(K)[:, None] >= nl.arange(M)[None, :], k_ >= m_,
    ),
    "nothing": (lambda: nl.arange(N)[None, :] >= N, n_ > N),
    "everything": (lambda: nl.arange(N)[None, :] < N, n_ < N),
    "either": (
        lambda: (nl.arange(N)[None, :] < 3) | (nl.arange(N)[None, :] > 8), (n_ < 3) | (n_ > 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", PRODUCT_MASKS)
def test_a_mask_of_a_product_may_be_for_any_of_its_axes(name: str, wide: bool, adds: bool) -> None:
    """A sum keeps what the mask leaves out; also where operands hold what is not finite there."""
    mask, inside = PRODUCT_MASKS[name]

    @nki.jit
    def kernel(a: Any, b: Any, begin: Any) -> Any:
        x, y = nl.load(a), nl.load(b)
        if wide:
            y = y.reshape((K, 2, N // 2))
        psum = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
        psum[...] = nisa.nc_matmul(nl.load(begin), nl.load(b))
        target = psum.reshape((M, 2, N // 2)) if wide else psum
        if adds:
            target += nisa.nc_matmul(x, y, mask=mask())
        else:
            target[...] = nisa.nc_matmul(x, y, mask=mask())
        out = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, psum)
        return out

    a, b, begin = random(K, M), random(K, N, seed=1), random(K, M, seed=2)
    taking_part = np.broadcast_to(inside, (K, M, N))
    want = begin.astype(float).T @ b
    product = (a.astype(float)[:, :, None] * b[:, None, :] * taking_part).sum(axis=0)
    want = want + product if adds else np.where(taking_part.any(axis=0), product, want)
    if name == "every other row":
        a[1::2] = np.inf
    close(kernel(a, b, begin), want, rounded=2 * summed(K))


def test_a_mask_of_a_transpose_is_that_of_its_source() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        tile = nl.zeros((8, 16), dtype=a.dtype)
        p, f = nl.mgrid[0:16, 0:8]
        tile[:, :] = nisa.nc_transpose(nl.load(a), mask=(p < 5) & (f < 3))
        return tile

    a = random(16, 8)
    want = np.zeros((8, 16), np.float32)
    want[:3, :5] = a[:5, :3].T
    np.testing.assert_array_equal(kernel(a), want)
