"""The public tests of products, transposes and placed tiles of the first generation, restated."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.isa.constants import dge_mode
from tests.nki.compat.compat_tools import close, random, returning, summed


def test_product_of_two_tiles() -> None:
    def product(a: Any, b: Any) -> Any:
        left, right = nl.mgrid[0:128, 0:64], nl.mgrid[0:128, 0:96]
        return nisa.nc_matmul(a[left.p, left.x], b[right.p, right.x])

    a, b = random(128, 64), random(128, 96, seed=1)
    got = returning(product)(a, b)
    close(got, a.astype(float).T @ b, rounded=summed(128))


def test_products_accumulate_in_psum() -> None:
    @nki.jit(mode="simulation")
    def kernel(d: Any, e: Any) -> Any:
        out = nl.ndarray([64, 96], dtype=nl.float32, buffer=nl.shared_hbm)
        left, right, whole = nl.mgrid[0:128, 0:64], nl.mgrid[0:128, 0:96], nl.mgrid[0:64, 0:96]
        psum = nl.zeros((64, 96), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(3):
            a = nl.load(d[i * 128 + left.p, left.x])
            b = nl.load(e[i * 128 + right.p, right.x])
            psum += nisa.nc_matmul(a[left.p, left.x], b[right.p, right.x])
        nl.store(out[whole.p, whole.x], psum)
        return out

    d, e = random(384, 64), random(384, 96, seed=1)
    close(kernel(d, e), d.astype(float).T @ e, rounded=summed(384))
    names = [event.template.row.name for event in kernel.today().record(d, e).events()]
    assert names.count("nc_matmul") == 3
    assert "memset" not in names
    assert "tensor_tensor" not in names


def test_products_of_a_batch_run_on_parts_of_the_array() -> None:
    @nki.jit(mode="simulation")
    def kernel(g: Any, h: Any) -> Any:
        out = nl.ndarray([4, 64, 32], dtype=nl.float32, buffer=nl.shared_hbm)
        grid, wide = nl.mgrid[0:64, 0:64], nl.mgrid[0:64, 0:32]
        for i in nl.affine_range(2):
            for j in nl.affine_range(2):
                a = nl.load(g[i * 2 + j, grid.p, grid.x])
                b = nl.load(h[i * 2 + j, wide.p, wide.x])
                psum = nisa.nc_matmul(
                    a, b, tile_position=((i % 2) * 64, (j % 2) * 64), tile_size=(64, 64)
                )
                nl.store(out[i * 2 + j, wide.p, wide.x], psum)
        return out

    g, h = random(4, 64, 64), random(4, 64, 32, seed=1)
    close(kernel(g, h), g.astype(float).transpose(0, 2, 1) @ h, rounded=summed(64))


def test_two_rows_in_one_pass() -> None:
    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(a: Any, b: Any) -> Any:
        rows, two, free = a.shape
        out = nl.ndarray([free, b.shape[2]], dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((rows, two, max(free, 16)), dtype=nl.float8_e5m2, buffer=nl.sbuf)
        grid = nl.mgrid[0:rows, 0:two, 0:free]
        tile[grid.p, grid.x, grid.y] = nl.load(a.view(nl.float8_e5m2))
        moving = nl.load(b.view(nl.float8_e5m2))
        made = nisa.nc_matmul(tile[grid.p, grid.x, grid.y], moving, perf_mode="double_row_gen3")
        nl.store(out, value=made)
        return out

    a = random(128, 2, 1).astype(nl.float8_e5m2)
    b = random(128, 2, 32, seed=1).astype(nl.float8_e5m2)
    want = np.einsum("kli,klj->ij", a.astype(float), b.astype(float))
    close(kernel(a, b), want, rounded=summed(256))


def test_transposes_on_both_engines() -> None:
    def transposed(a: Any, b: Any) -> Any:
        rows, columns = nl.arange(128)[:, None], nl.arange(64)[None, :]
        first = nisa.nc_transpose(a[rows, columns])
        i, j = nl.arange(32)[:, None], nl.arange(2)[None, :]
        return first, nisa.nc_transpose(b[i, j], engine=nisa.vector_engine)

    a, b = random(128, 64), random(32, 2)
    got = returning(transposed)(a, b)
    np.testing.assert_array_equal(got[0], a.T)
    np.testing.assert_array_equal(got[1], b.T)


def test_language_matmul_and_transpose() -> None:
    a, b = random(64, 96), random(96, 32, seed=1)
    want = a.astype(float) @ b
    close(returning(nl.matmul)(a, b), want, rounded=summed(96))
    transposed = returning(lambda x, y: nl.matmul(x, y, transpose_x=True))
    close(transposed(a.T.copy(), b), want, rounded=summed(96))
    np.testing.assert_array_equal(returning(nl.transpose)(a), a.T)


@pytest.mark.parametrize("mode", [dge_mode.unknown, dge_mode.hwdge])
@pytest.mark.parametrize("on_chip", [False, True])
def test_dma_transpose_of_a_matrix(mode: Any, on_chip: bool) -> None:
    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(a: Any) -> Any:
        source = nl.load(a) if on_chip else a
        tile = nisa.dma_transpose(source[:, :], dge_mode=mode)
        out = nl.ndarray(shape=tile.shape, dtype=tile.dtype, buffer=nl.hbm)
        nl.store(dst=out, value=tile)
        return out

    a = random(16, 128).astype(np.float16)
    np.testing.assert_array_equal(kernel(a), a.T)


def test_dma_transpose_gathers() -> None:
    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(source: Any, index: Any) -> Any:
        i_p, chosen = nl.arange(32)[:, None], nl.load(index)
        _, dim1, dim2 = source.shape
        iy, iz = nl.arange(dim1)[None, :, None], nl.arange(dim2)[None, None, :]
        tile = nisa.dma_transpose(source[chosen[i_p, 0], iy, iz], axes=(2, 1, 0))
        out = nl.ndarray(tile.shape, dtype=source.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    source = np.arange(64 * 4 * 16, dtype=np.uint16).reshape(64, 4, 16)
    index = np.random.default_rng(0).permutation(64)[:32].astype(np.uint32)
    got = kernel(source, index.reshape(32, 1))
    np.testing.assert_array_equal(got, source[index].transpose(2, 1, 0))


@pytest.mark.parametrize("function", [nl.load_transpose2d, nisa.dma_transpose])
def test_transpose_while_loading(function: Any) -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray([a.shape[1], a.shape[0]], dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=function(a))
        return out

    a = random(256, 64)
    np.testing.assert_array_equal(kernel(a), a.T)


def by_hand(base: int, psum: bool) -> Any:
    """Place every tile at one address, as a function of block index, partitions and bytes."""

    def place(index: Any, partitions: int, nbytes: int) -> tuple[int, ...]:
        assert (index, partitions, nbytes) == ((), 128, 512)
        return (0, 0, base) if psum else (0, base)

    return place


@pytest.mark.parametrize("placed", ["sbuf by hand", "psum by hand"])
def test_transpose_by_products_in_placed_tiles(placed: str) -> None:
    hand = placed == "sbuf by hand"

    def sbuf(base: int) -> Any:
        return (
            ncc.sbuf.alloc(by_hand(base, psum=False))
            if hand
            else ncc.sbuf.mod_alloc(base_addr=base)
        )

    psum = ncc.psum.mod_alloc(base_bank=0) if hand else ncc.psum.alloc(by_hand(0, psum=True))

    @nki.trace
    def kernel(a: Any, out: Any) -> None:
        identity = nl.shared_identity_matrix(n=128, dtype=nl.bfloat16)
        p, f = nl.arange(0, 128)[:, None], nl.arange(0, 128)[None, :]
        for n in nl.affine_range(a.shape[0] // 128):
            for m in nl.affine_range(a.shape[1] // 128):
                tile = nl.ndarray((nl.par_dim(128), 128), dtype=a.dtype, buffer=sbuf(1024))
                tile[p, f] = nl.load(a[n * 128 + p, m * 128 + f])
                ones = nl.ndarray((nl.par_dim(128), 128), dtype=a.dtype, buffer=sbuf(0))
                ones[p, f] = nl.load(identity, dtype=a.dtype)
                turned = nl.ndarray((nl.par_dim(128), 128), dtype=a.dtype, buffer=psum)
                turned[p, f] = nisa.nc_matmul(tile[p, f], ones)
                copy = nl.ndarray((nl.par_dim(128), 128), dtype=a.dtype, buffer=sbuf(2048))
                copy[p, f] = nl.copy(turned[p, f])
                nl.store(out[m * 128 + p, n * 128 + f], value=copy[p, f])

    a = random(256, 128, scale=100)
    out = np.zeros((128, 256), np.float32)
    nki.simulate_kernel(kernel, a, out)
    np.testing.assert_array_equal(out, a.T)


def test_blocks_are_placed_modulo() -> None:
    seen: list[Any] = []

    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        ring = nl.ndarray(
            (4, nl.par_dim(128), 8), dtype=a.dtype,
            buffer=ncc.sbuf.mod_alloc(base_addr=64, num_free_tiles=(2,)),
        )  # fmt: skip
        seen.append([block.storage.address for block in ring.blocks])
        with ncc.no_reorder():
            for i in nl.affine_range(4):
                ring[i] = nl.load(a[i])
                nl.store(out[i], ring[i])
        return out

    a = random(4, 128, 8)
    np.testing.assert_array_equal(kernel(a), a)
    np.testing.assert_array_equal(ncc.force_auto_alloc(kernel)(a), a)
    assert seen == [[(0, 64), (0, 96), (0, 64), (0, 96)], [None] * 4]


def test_psum_banks_modulo() -> None:
    seen = []

    @ncc.enable_stack_allocator
    @ncc.skip_middle_end_transformations
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((4, 128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
        placement = ncc.psum.mod_alloc(base_bank=1, num_bank_tiles=(2,))
        psum = nl.ndarray((4, nl.par_dim(128), 128), dtype=nl.float32, buffer=placement)
        seen.append([block.storage.address for block in psum.blocks])
        tile = nl.load(a)
        for i in nl.affine_range(4):
            psum[i] = nisa.nc_matmul(tile, tile)
            nl.store(out[i], psum[i])
        return out

    a = random(128, 128).astype(ml_dtypes.bfloat16)
    want = a.astype(float).T @ a.astype(float)
    for got in kernel(a):
        close(got, want, rounded=summed(128))
    assert seen == [[(0, 2048), (0, 4096), (0, 2048), (0, 4096)]]
