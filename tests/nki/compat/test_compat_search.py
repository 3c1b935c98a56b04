"""The public tests of searches, gathers and shuffles of the first generation, restated."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from nki.errors import NkiWarning
from tests.nki.compat.compat_tools import Array, random, returning


@nki.jit(mode="simulation")
def largest() -> Any:
    data = nl.rand((32, 64))
    values = nisa.max8(src=data)
    indices = nisa.nc_find_index8(data=data, vals=values)
    outs = []
    for tile in (data, values, indices):
        out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=tile)
        outs.append(out)
    return tuple(outs)


def test_max8_and_find_index8_of_random_numbers() -> None:
    data, values, indices = largest()
    assert ((data >= 0) & (data < 1)).all()
    assert indices.dtype == np.uint32
    np.testing.assert_array_equal(values, -np.sort(-data, axis=1)[:, :8])
    np.testing.assert_array_equal(np.take_along_axis(data, indices.astype(int), 1), values)


def replaced(a: Array, imm: float) -> tuple[Array, Array]:
    """Return the array with its 8 largest elements per row replaced, and their places."""
    flat = a.reshape(len(a), -1).copy()
    places = np.argsort(-flat, axis=1, kind="stable")[:, :8]
    np.put_along_axis(flat, places, imm, axis=1)
    return flat.reshape(a.shape), places.astype(np.uint32)


def test_match_replace8_without_indices() -> None:
    def kernel(x: Any) -> Any:
        values = nisa.max8(src=x)
        return nisa.nc_match_replace8(data=x[:, :], vals=values, imm=float("-inf"))

    a = random(4, 16)
    np.testing.assert_array_equal(returning(kernel)(a), replaced(a, -np.inf)[0])


@pytest.mark.parametrize("masked", [False, True])
def test_match_replace8_with_indices_and_mask(masked: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any, imm: Any) -> Any:
        n, m = x.shape
        out = nl.ndarray([n, m], dtype=x.dtype, buffer=nl.hbm)
        places = nl.ndarray([n, 8], dtype=nl.uint32, buffer=nl.hbm)
        index = nisa.memset(shape=(n, 8), value=0, dtype=nl.uint32)
        ix, iy = nl.mgrid[0:n, 0:m]
        tile = nl.load(x)
        rows, columns = (n // 2, m // 2) if masked else (n, m)
        values = nisa.max8(src=tile[ix, iy], mask=(ix < rows and iy < columns))
        made = nisa.nc_match_replace8(
            dst_idx=index[:, :], data=tile[ix, iy], vals=values, imm=imm,
            mask=(ix < rows and iy < columns),
        )  # fmt: skip
        nl.store(out, value=made)
        nl.store(places, value=index)
        return out, places

    a = random(32, 64)
    # What the mask leaves out of the result is never written.
    with pytest.warns(NkiWarning, match="NKI204") if masked else nullcontext():
        got, places = kernel(a, imm=np.float32("-inf"))
    part = np.s_[:16, :32] if masked else np.s_[:, :]
    want, wanted = replaced(a[part], -np.inf)
    np.testing.assert_array_equal(got[part], want)
    np.testing.assert_array_equal(places[part[0]], wanted)
    if masked:
        assert not places[16:].any()


@pytest.mark.parametrize("in_place", [False, True])
def test_match_replace8_of_three_dimensions(in_place: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any) -> Any:
        n, b, m = x.shape
        out = nl.ndarray([n, b, m], dtype=x.dtype, buffer=nl.hbm)
        places = nl.ndarray([n, 8], dtype=nl.uint32, buffer=nl.hbm)
        index = nisa.memset(shape=(n, 8), value=0, dtype=nl.uint32)
        iq, ir, iw = nl.mgrid[0:n, 0:b, 0:m]
        ip, io = nl.mgrid[0:n, 0:8]
        tile = nl.load(x[iq, ir, iw])
        values = nisa.max8(src=tile)
        made = tile if in_place else nisa.memset(shape=(n, b, m), value=0, dtype=x.dtype)
        made[iq, ir, iw] = nisa.nc_match_replace8(
            dst_idx=index[ip, io], data=tile[iq, ir, iw], vals=values[ip, io], imm=0.0
        )
        nl.store(out, value=made)
        nl.store(places, value=index)
        return out, places

    a = random(32, 4, 4)
    got, places = kernel(a)
    want, wanted = replaced(a, 0)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(places, wanted)


def test_gather_flattened_with_indices_set_one_by_one() -> None:
    @nki.jit(mode="simulation")
    def kernel(data: Any) -> Any:
        indices = nl.zeros((4, 3), dtype=nl.uint32)
        for i in nl.static_range(4):
            for j in nl.static_range(3):
                indices[i, j] = j * 5 + i
        result = nl.gather_flattened(data=nl.load(data), indices=indices)
        out = nl.ndarray([4, 3], dtype=data.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=result)
        return out

    data = random(4, 16)
    indices = np.arange(3)[None] * 5 + np.arange(4)[:, None]
    np.testing.assert_array_equal(kernel(data), np.take_along_axis(data, indices, axis=1))


def test_local_gather_reads_several_elements_for_an_index() -> None:
    chosen = np.random.default_rng(0).integers(0, 32, (128, 4)).astype(np.uint16)
    source = random(128, 32, 4)
    got = returning(lambda s, i: nisa.local_gather(s, i, 4, 64))(source, chosen * 4)
    assert got.shape == (128, 4, 16, 4)
    for first in range(0, 128, 16):
        group = slice(first, first + 16)
        order = chosen[group].reshape(-1, order="F")
        want = source[group][:, order]
        np.testing.assert_array_equal(got[group].reshape(16, 64, 4), want)


def test_sequence_bounds_of_segments_and_padding() -> None:
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.float32)

    def bounds(x: Any) -> Any:
        m, n = x.shape
        ix, iy, iz = nl.mgrid[0:m, 0:2, 0:n]
        out = nl.ndarray([m, 2, n], dtype=x.dtype, buffer=nl.sbuf)
        out[ix, iy, iz] = nisa.sequence_bounds(segment_ids=x)
        return out

    want = [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]
    np.testing.assert_array_equal(returning(bounds)(ids), want)


def test_shuffle_in_place_rotates_a_quadrant() -> None:
    def rotated(a: Any) -> Any:
        grid = nl.mgrid[0:32, 0:16]
        order = [(i - 1) % 32 for i in range(32)]
        part = a[grid.p, grid.x]
        nisa.nc_stream_shuffle(src=part, dst=a[grid.p, grid.x], shuffle_mask=order)
        return a

    a = random(32, 16)
    np.testing.assert_array_equal(returning(rotated)(a), np.roll(a, 1, axis=0))


def test_shuffle_spreads_one_partition() -> None:
    def spread(a: Any) -> Any:
        b = nl.ndarray(shape=(32, 16), dtype=np.float32)
        dst, src = nl.mgrid[0:32, 0:16], nl.mgrid[0:1, 0:16]
        nisa.nc_stream_shuffle(src=a[0, src.x], dst=b[dst.p, dst.x], shuffle_mask=[0] * 32)
        return b

    a = random(1, 16)
    np.testing.assert_array_equal(returning(spread)(a), np.repeat(a, 32, axis=0))


def test_shuffle_of_several_quadrants() -> None:
    def rotated(a: Any) -> Any:
        b = nl.ndarray(shape=(128, 16), dtype=np.float32)
        grid = nl.mgrid[0:128, 0:16]
        order = [(i - 1) % 32 for i in range(32)]
        nisa.nc_stream_shuffle(src=a[grid.p, grid.x], dst=b[grid.p, grid.x], shuffle_mask=order)
        return b

    a = random(128, 16)
    want = np.roll(a.reshape(4, 32, 16), 1, axis=1).reshape(128, 16)
    np.testing.assert_array_equal(returning(rotated)(a), want)
