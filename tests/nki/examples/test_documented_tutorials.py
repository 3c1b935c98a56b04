"""The kernels of the public tutorials and examples, restated with small shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from tests.nki.examples.tools import EPS, Array, bf16, output, random, tile

TARGETS = ("trn1", "trn2", "trn3")


@pytest.fixture(params=TARGETS)
def _target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", request.param)


everywhere = pytest.mark.usefixtures("_target")


# --- addition ------------------------------------------------------------------------------------


@nki.jit
def add_tiles(a: Any, b: Any) -> Any:
    rows, columns = 128, 64
    assert a.shape == b.shape, f"{a.shape} and {b.shape}"
    assert a.dtype == b.dtype
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(a.shape[0] // rows):
        for j in nl.affine_range(a.shape[1] // columns):
            x = nl.ndarray(shape=(rows, columns), dtype=a.dtype, buffer=nl.sbuf)
            y = nl.ndarray(shape=(rows, columns), dtype=b.dtype, buffer=nl.sbuf)
            z = nl.ndarray(shape=(rows, columns), dtype=a.dtype, buffer=nl.sbuf)
            here = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            nisa.dma_copy(dst=x, src=a[here])
            nisa.dma_copy(dst=y, src=b[here])
            nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=out[here], src=z)
    return out


@nki.jit
def add_loaded(a: Any, b: Any) -> Any:
    assert a.shape[0] <= nl.tile_size.pmax
    total = nl.add(nl.load(a), nl.load(b))
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=total)
    return out


@everywhere
def test_addition() -> None:
    a, b = random(256, 128), random(256, 128, seed=1)
    np.testing.assert_array_equal(add_tiles(a, b), a + b)
    half = np.ones((4, 3), np.float16)
    np.testing.assert_array_equal(add_loaded(half, half), half * 2)
    np.testing.assert_array_equal(nki.simulate(add_loaded)(a[:128], b[:128]), a[:128] + b[:128])
    with pytest.raises(AssertionError, match=r"\(256, 128\) and \(128, 128\)"):
        add_tiles(a, b[:128])


# --- layouts -------------------------------------------------------------------------------------


@nki.jit
def exponential(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], nl.tile_size.pmax):
        rows = slice(start, min(start + nl.tile_size.pmax, x.shape[0]))
        nl.store(out[rows, 0 : x.shape[1]], value=nl.exp(nl.load(x[rows, 0 : x.shape[1]])))
    return out


@nki.jit
def exponential_at_once(x: Any) -> Any:
    return output(nl.exp(nl.load(x)))


@everywhere
def test_layouts() -> None:
    x = random(200, 48)
    np.testing.assert_allclose(exponential(x), np.exp(x), rtol=4 * EPS)
    with pytest.raises(NkiError, match="ends at partition 200, and sbuf has 128") as caught:
        exponential_at_once(x)
    assert caught.value.code == "NKI004"


# --- views ---------------------------------------------------------------------------------------


@nki.jit
def even_and_odd(x: Any) -> tuple[Any, Any]:
    held = nl.load(x)
    return output(held[:, 0 : x.shape[1] : 2]), output(held[:, 1 : x.shape[1] : 2])


@nki.jit
def transposed(x: Any, shape: tuple[int, int]) -> Any:
    held, done = tile(x), nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    rows, columns = shape
    for i in nl.affine_range(rows):
        for j in nl.affine_range(columns):
            nisa.tensor_copy(
                dst=done[:, nl.ds(j * rows + i, 1)], src=held[:, nl.ds(i * columns + j, 1)]
            )
    return output(done)


def windows(held: Any, pool: int) -> Any:
    _, height, width = held.shape
    return held.ap(
        [
            [height * width, held.shape[0]],
            [pool * width, height // pool],
            [pool, width // pool],
            [width, pool],
            [1, pool],
        ]
    )


@nki.jit
def largest(x: Any, pool: int) -> Any:
    return output(nl.max(windows(nl.load(x), pool), axis=[3, 4]))


@nki.jit
def averages(x: Any, pool: int) -> Any:
    total = nl.sum(windows(tile(x), pool), axis=[3, 4])
    mean = nl.ndarray(total.shape, dtype=total.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mean, data=total, op0=nl.multiply, operand0=1.0 / pool**2)
    return output(mean)


@everywhere
def test_views() -> None:
    x = bf16(np.arange(20).reshape(4, 5))
    even, odd = even_and_odd(x)
    np.testing.assert_array_equal(even, x[:, ::2])
    np.testing.assert_array_equal(odd, x[:, 1::2])
    flat = np.arange(60, dtype=np.int8).reshape(5, 12)
    expected = flat.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12)
    np.testing.assert_array_equal(transposed(flat, (3, 4)), expected)
    image = np.arange(72, dtype=np.float16).reshape(2, 6, 6)
    blocks = image.reshape(2, 3, 2, 3, 2)
    np.testing.assert_array_equal(largest(bf16(image), 2), bf16(blocks.max((2, 4))))
    np.testing.assert_array_equal(averages(image, 2), blocks.mean((2, 4)))


# --- products ------------------------------------------------------------------------------------


@nki.jit
def product_tiled(a: Any, b: Any) -> Any:
    """a is transposed; one PSUM tile after the other."""
    wide = nl.tile_size.gemm_moving_fmax
    depth, rows = a.shape
    out = nl.ndarray((rows, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // 128):
        for n in nl.affine_range(b.shape[1] // wide):
            total = nl.ndarray((128, wide), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(depth // 128):
                left = tile(a[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128])
                right = tile(b[k * 128 : (k + 1) * 128, n * wide : (n + 1) * wide])
                nisa.nc_matmul(dst=total, stationary=left, moving=right)
            done = nl.ndarray(total.shape, dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=total)
            place = slice(m * 128, (m + 1) * 128), slice(n * wide, (n + 1) * wide)
            nisa.dma_copy(dst=out[place], src=done)
    return out


@nki.jit
def product_hoisted(a: Any, b: Any) -> Any:
    """Loads are moved out of the inner loops, into lists of tiles."""
    wide = nl.tile_size.gemm_moving_fmax
    depths = range(a.shape[0] // 128)
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(a.shape[1] // 128):
        left = [tile(a[k * 128 : (k + 1) * 128, m * 128 : (m + 1) * 128]) for k in depths]
        for n in nl.affine_range(b.shape[1] // wide):
            right = [tile(b[k * 128 : (k + 1) * 128, n * wide : (n + 1) * wide]) for k in depths]
            total = nl.ndarray((128, wide), dtype=nl.float32, buffer=nl.psum)
            for x, y in zip(left, right, strict=True):
                nisa.nc_matmul(total, x, y)
            done = nl.ndarray(total.shape, dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(done, total)
            nisa.dma_copy(out[nl.ds(m * 128, 128), nl.ds(n * wide, wide)], done)
    return out


@nki.jit
def product_blocked(a: Any, b: Any, block_m: int = 1, block_n: int = 1, block_k: int = 1) -> Any:
    """All three dimensions are blocked; SBUF holds the sums of the blocks of k."""
    wide = nl.tile_size.gemm_moving_fmax
    depth, rows = a.shape
    out = nl.ndarray((rows, b.shape[1]), dtype=a.dtype, buffer=nl.shared_hbm)
    span = block_n * wide
    for n in nl.affine_range(b.shape[1] // span):
        sums = []
        for _ in nl.affine_range(rows // 128):
            sums.append(nl.ndarray((128, block_n, wide), dtype=out.dtype, buffer=nl.sbuf))
            nisa.memset(dst=sums[-1], value=0.0)
        for k in nl.sequential_range(depth // (128 * block_k)):
            first = k * block_k
            right = nl.ndarray((128, block_k, span), dtype=b.dtype, buffer=nl.sbuf)
            for i in range(block_k):
                source = b[(first + i) * 128 : (first + i + 1) * 128, n * span : (n + 1) * span]
                nisa.dma_copy(dst=right[0:128, i, 0:span], src=source)
            for m in nl.affine_range(rows // (128 * block_m)):
                high = 128 * block_m
                left = nl.ndarray((128, block_k, high), dtype=a.dtype, buffer=nl.sbuf)
                for i in range(block_k):
                    source = a[(first + i) * 128 : (first + i + 1) * 128, m * high : (m + 1) * high]
                    nisa.dma_copy(dst=left[0:128, i, 0:high], src=source)
                _block_products(sums, left, right, m * block_m, wide)
        for m, held in enumerate(sums):
            block = held.reshape((128, span))
            nisa.dma_copy(
                dst=out[m * 128 : (m + 1) * 128, n * span : (n + 1) * span],
                src=block[0:128, 0:span],
            )
    return out


def _block_products(sums: list[Any], left: Any, right: Any, first: int, wide: int) -> None:
    for j in nl.affine_range(right.shape[2] // wide):
        for i in nl.affine_range(left.shape[2] // 128):
            total = nl.ndarray((128, wide), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(left.shape[1]):
                nisa.nc_matmul(
                    dst=total,
                    stationary=left[0:128, k, i * 128 : (i + 1) * 128],
                    moving=right[0:128, k, j * wide : (j + 1) * wide],
                )
            held = sums[first + i]
            nisa.tensor_tensor(
                dst=held[0:128, j, 0:wide],
                data1=held[0:128, j, 0:wide],
                data2=total,
                op=nl.add,
            )


def close_product(got: Array, a: Array, b: Array, roundings: int) -> None:
    """Compare with the exact product: float32 sums, and roundings to the type of the result."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    exact, size = left.T @ right, np.abs(left).T @ np.abs(right)
    depth = a.shape[0]
    eps = 2.0**-8 if a.dtype != np.float32 else EPS
    bound = (depth * EPS + roundings * eps) * size + roundings * eps * np.abs(exact)
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


@everywhere
def test_products() -> None:
    a, b = random(256, 256), random(256, 1024, seed=1)
    close_product(product_tiled(a, b), a, b, 1)
    small, wide = bf16(a), bf16(b)
    close_product(product_hoisted(small, wide), small, wide, 1)
    got = product_blocked(small, wide, block_m=2, block_n=2)
    close_product(got, small, wide, 2)
    np.testing.assert_array_equal(got, product_blocked(small, wide, block_m=1, block_n=1))


# --- state space model ---------------------------------------------------------------------------


@nki.jit
def state_space(delta: Any, u: Any, a: Any, b: Any, c: Any, span: int = 0) -> Any:
    """The Mamba tutorial; ``span`` cuts the scan into parts that continue each other."""
    batch, channels, length = delta.shape
    span = span or length
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(batch):
        for j in nl.affine_range(channels // 128):
            rows = slice(j * 128, (j + 1) * 128)
            total = nl.zeros((128, length), dtype=delta.dtype)
            held, held_u = tile(delta[i, rows, 0:length]), tile(u[i, rows, 0:length])
            for s in nl.affine_range(a.shape[1]):
                rate, last = tile(a[rows, s : s + 1]), nl.zeros((128, 1), dtype=delta.dtype)
                for t in nl.static_range(length // span):
                    part = slice(t * span, (t + 1) * span)
                    last = _step(
                        total[:, part],
                        (held[:, part], held_u[:, part], rate, last),
                        tile(b[i, s : s + 1, part]),
                        tile(c[i, s : s + 1, part]),
                    )
            nisa.dma_copy(dst=out[i, rows, 0:length], src=total)
    return out


def _step(total: Any, of: tuple[Any, Any, Any, Any], b: Any, c: Any) -> Any:
    delta, u, rate, last = of
    shape, dtype = total.shape, total.dtype
    decay, drive = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype)
    nisa.activation(dst=decay, op=nl.exp, data=delta, scale=rate)
    nisa.tensor_tensor(dst=drive, data1=delta, data2=u, op=nl.multiply)
    nisa.tensor_tensor(dst=drive, data1=drive, data2=nl.broadcast_to(b, shape), op=nl.multiply)
    state, seen = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype)
    nisa.tensor_tensor_scan(
        dst=state, data0=decay, data1=drive, initial=last, op0=nl.multiply, op1=nl.add
    )
    nisa.tensor_tensor(dst=seen, data1=state, data2=nl.broadcast_to(c, shape), op=nl.multiply)
    nisa.tensor_tensor(dst=total, data1=total, data2=seen, op=nl.add)
    return state[:, shape[1] - 1 : shape[1]]


@everywhere
def test_state_space() -> None:
    batch, states, length = 2, 3, 16
    delta = np.abs(random(batch, 128, length)) * np.float32(0.1)
    u, a = random(batch, 128, length, seed=1), -np.abs(random(128, states, seed=2))
    b, c = random(batch, states, length, seed=3), random(batch, states, length, seed=4)
    expected, size = np.zeros(delta.shape), np.zeros(delta.shape)
    for i in range(batch):
        state, most = np.zeros(a.shape), np.zeros(a.shape)
        for t in range(length):
            decay = np.exp(delta[i, :, t, None].astype(np.float64) * a)
            drive = delta[i, :, t, None].astype(np.float64) * u[i, :, t, None] * b[i, :, t]
            state, most = decay * state + drive, decay * most + np.abs(drive)
            expected[i, :, t] = (state * c[i, :, t]).sum(1)
            size[i, :, t] = (most * np.abs(c[i, :, t])).sum(1)
    # Some roundings for each step and state, and those of exp.
    bound = 8 * (length + states) * EPS * size
    for span in (0, length // 4):
        got = state_space(delta, u, a, b, c, span=span)
        assert (np.abs(got - expected) <= bound).all()
