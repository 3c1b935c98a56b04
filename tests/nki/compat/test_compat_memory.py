"""The public tests of loads, stores and DMA of the first generation, restated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import close, random, returning


def test_dma_copy_between_tensors_in_hbm() -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=a)
        return out

    a = random(256, 1)
    np.testing.assert_array_equal(kernel(a), a)


@pytest.mark.parametrize("mode", [nisa.dge_mode.swdge, nisa.dge_mode.hwdge])
def test_dma_copy_takes_modes_by_name(mode: Any) -> None:
    """The numbers of the members differ from today's."""

    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.load(a)
        made = nl.zeros_like(tile, buffer=nl.sbuf)
        nisa.dma_copy(dst=made, src=tile, dge_mode=mode)
        nl.store(out, value=made)
        return out

    a = random(128, 16)
    np.testing.assert_array_equal(kernel(a), a)
    events = list(kernel.today().record(a).events())
    asked = [e.template.attributes.get("dge_mode") for e in events]
    assert mode.name in asked


@nki.jit(mode="simulation")
def gathered(a: Any, step: int, mode: Any) -> Any:
    n, m = a.shape
    out = nl.ndarray([n // 2, m], dtype=a.dtype, buffer=nl.shared_hbm)
    ix, iy = nl.mgrid[0 : n // 2, 0:m]
    index = nisa.iota(step * nl.arange(n // 2)[:, None], dtype=np.int32)
    tile = nisa.memset(shape=(n // 2, m), value=-1, dtype=a.dtype)
    nisa.dma_copy(src=a[index, iy], dst=tile[ix, iy], oob_mode=mode)
    nl.store(out, value=tile)
    return out


@nki.jit(mode="simulation")
def scattered(a: Any, step: int, mode: Any) -> Any:
    n, m = a.shape
    out = nl.ndarray([2 * n, m], dtype=a.dtype, buffer=nl.shared_hbm)
    ix, iy = nl.mgrid[0:n, 0:m]
    tile = nl.load(a[ix, iy])
    index = nisa.iota(step * nl.arange(n)[:, None], dtype=np.int32)
    nl.store(out, value=nisa.memset(shape=(2 * n, m), value=-1, dtype=a.dtype))
    nisa.dma_copy(dst=out[index, iy], src=tile, oob_mode=mode)
    return out


def test_indirect_copy_within_bounds() -> None:
    a = random(64, 16)
    np.testing.assert_array_equal(gathered(a, 2, nisa.oob_mode.error), a[::2])
    want = np.full((128, 16), -1, np.float32)
    want[::2] = a
    np.testing.assert_array_equal(scattered(a, 2, nisa.oob_mode.error), want)


def test_indirect_copy_skips_what_is_out_of_bounds() -> None:
    a = random(64, 16)
    want = np.full((32, 16), -1, np.float32)
    want[:22] = a[::3]
    np.testing.assert_array_equal(gathered(a, 3, nisa.oob_mode.skip), want)
    want = np.full((128, 16), -1, np.float32)
    want[::3] = a[:43]
    np.testing.assert_array_equal(scattered(a, 3, nisa.oob_mode.skip), want)


@pytest.mark.parametrize(("kernel", "first", "rows"), [(gathered, 66, 64), (scattered, 129, 128)])
def test_indirect_copy_out_of_bounds_is_an_index_error(kernel: Any, first: int, rows: int) -> None:
    with pytest.raises(IndexError) as caught:
        kernel(random(64, 16), 3, nisa.oob_mode.error)
    assert type(caught.value) is IndexError
    # The simulator of that time counted elements: 16 to a row.
    text = f"index {16 * first} is out of bounds for axis 0 with size {16 * rows}"
    assert str(caught.value) == text
    cause = str(caught.value.__cause__)
    assert f"index {first} is out of bounds: it must be from 0 to below {rows}; " in cause
    assert __file__ in cause
    assert "NKI132" in cause


@pytest.mark.parametrize("repeats", [1, 2])
def test_adding_to_rows_of_hbm(repeats: int) -> None:
    """An index that occurs twice is added twice."""

    @nki.jit(mode="simulation")
    def kernel(a: Any, index: Any) -> Any:
        n, m = a.shape
        out = nl.ndarray([2 * n, m], dtype=a.dtype, buffer=nl.shared_hbm)
        iy = nl.arange(m)[None, :]
        nl.store(out, value=nisa.memset(shape=(2 * n, m), value=1, dtype=a.dtype))
        nisa.dma_copy(dst=out[nl.load(index), iy], src=nl.load(a), dst_rmw_op=np.add)
        nl.atomic_rmw(out[nl.load(index), iy], value=1.0, op=np.add)
        return out

    a = random(32, 8)
    index = (2 * np.arange(32, dtype=np.int32) // repeats).reshape(32, 1)
    want = np.ones((64, 8))
    np.add.at(want, index[:, 0], a.astype(float) + 1)
    close(kernel(a, index), want, rounded=4)


@pytest.mark.parametrize("from_iota", [False, True])
def test_loads_and_stores_by_index_tiles(from_iota: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any, b: Any, index: Any) -> Any:
        loaded = nl.ndarray([32, 16], dtype=a.dtype, buffer=nl.shared_hbm)
        stored = nl.ndarray([64, 16], dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(stored, 0)
        i_p, i_f = nl.arange(32)[:, None], nl.arange(16)[None, :]
        if from_iota:
            rows = nisa.iota(2 * nl.arange(32)[:, None], dtype=np.int32)
        else:
            rows = nl.load(index[i_p])[i_p, 0]
        nl.store(loaded, value=nl.load(a[rows, i_f]))
        nl.store(stored[rows, i_f], value=nl.load(b)[0:32, 0:16])
        return loaded, stored

    a, b = random(64, 16), random(32, 16, seed=1)
    index = 2 * np.arange(32, dtype=np.int32)
    loaded, stored = kernel(a, b, index)
    np.testing.assert_array_equal(loaded, a[index])
    want = np.zeros((64, 16), np.float32)
    want[index] = b
    np.testing.assert_array_equal(stored, want)


@pytest.mark.parametrize("number", [False, True])
def test_load_and_store_of_whole_tensors(number: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any, scalar: bool = False) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        tile = nl.load(a)
        nl.store(out, 100 if scalar else tile)
        return out

    a = np.arange(128 * 8, dtype=np.int32).reshape(128, 8)
    want = np.full_like(a, 100) if number else a
    np.testing.assert_array_equal(kernel(a, scalar=number), want)


def test_load_and_store_of_a_batch() -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        for i_b in nl.affine_range(4):
            tile = nl.zeros((128, 16), dtype=a.dtype)
            i_p, i_f = nl.mgrid[0:128, 0:16]
            tile[i_p, i_f] = nl.load(a[i_b, i_p, i_f])
            nl.store(out[i_b, i_p, i_f], value=tile[i_p, i_f])
        return out

    a = random(4, 128, 16)
    np.testing.assert_array_equal(kernel(a), a)


@pytest.mark.parametrize("named", [False, True])
def test_grids_index_tensors(named: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        grid = nl.mgrid[0:128, 0:16]
        p, x = (grid.p, grid.x) if named else grid
        nl.store(out[p, x], nl.load(a[p, x]))
        return out

    a = random(128, 16)
    np.testing.assert_array_equal(kernel(a), a)


def test_slices_and_dynamic_slices() -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(a.shape[1] // 16):
            tile = nl.load(a[:, (i * 16) : ((i + 1) * 16)])
            same = nl.load(a[:, nl.ds(i * 16, 16)])
            nl.store(out[:, nl.ds(i * 16, 16)], nl.maximum(tile, same))
        return out

    a = random(128, 64)
    np.testing.assert_array_equal(kernel(a), a)


def test_masks_take_a_corner() -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        out = nl.ndarray([64, 32], dtype=a.dtype, buffer=nl.shared_hbm)
        i_p, i_f = nl.arange(128)[:, None], nl.arange(64)[None, :]
        tile = nl.load(a[i_p, i_f])
        made = nl.square(tile, mask=((i_p < 64) & (i_f < 32)))
        nl.store(out[i_p, i_f], made[i_p, i_f], mask=((i_p < 64) & (i_f < 32)))
        return out

    a = random(128, 64)
    close(kernel(a), a[:64, :32].astype(float) ** 2)
    squares = [
        event.template.form("dst").shape
        for event in kernel.today().record(a).events()
        if event.template.row.name == "activation"
    ]
    assert squares == [(64, 32)]


def test_block_dimensions_are_tiles() -> None:
    @nki.jit(mode="simulation")
    def kernel(a: Any) -> Any:
        b, n, m = a.shape
        loaded = nl.ndarray((b, nl.par_dim(n), m), dtype=a.dtype, buffer=nl.sbuf)
        powers = nl.ndarray((b, nl.par_dim(n), m), dtype=a.dtype, buffer=nl.sbuf)
        out = nl.ndarray((b, nl.par_dim(n), m), dtype=a.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(b):
            loaded[i] = nl.load(a[i])
            powers[i] = nl.exp(loaded[i])
            nl.store(out[i], value=powers[i])
        return out

    a = random(4, 128, 16, scale=10)
    close(kernel(a), np.exp(a.astype(float)))


def test_kernel_without_arguments_and_store_of_a_strided_view() -> None:
    """The first case of the programming model: even and odd columns."""
    a = random(4, 5)
    p = np.s_[0:4]

    def split(x: Any) -> Any:
        rows = nl.arange(4)[:, None]
        return x[rows, 2 * nl.arange(3)[None, :]], x[rows, 2 * nl.arange(2)[None, :] + 1]

    even, odd = returning(split)(a)
    np.testing.assert_array_equal(even, a[p, 0::2])
    np.testing.assert_array_equal(odd, a[p, 1::2])
