"""What is documented as a copy keeps every bit of every type, in both executors.

NaN is where that can be seen: of floating point only NaN has several patterns for one value, and a
kernel that holds a type in a wider one loses them. AWS stores other data behind views of 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.collectives import ReplicaGroup, spmd
from nki.dtypes import NAMES, info
from nki.isa.rows.matmul_rules import INPUTS

pytestmark = pytest.mark.usefixtures("executor", "own_cache")

Array = npt.NDArray[Any]
WORDS = {1: "uint8", 2: "uint16", 4: "uint32"}
SIDE = 32
# Infinities, quiet and signalling NaN of 16 and 32 bits: the low bits are left to chance.
EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "tfloat32": 0x7F800000}

Copy = Callable[[Any, Any, str], Any]
Expected = Callable[[Array, Array], Array]
COPIES: dict[str, tuple[Copy, Expected]] = {}


def copy(expected: Expected = lambda x, _: x) -> Callable[[Copy], Copy]:
    """Register a function that copies a tile of 32 by 32 in SBUF.

    It gets the tile, a tile of 32 indices below 32 (int32, a permutation), and the type.

    Args:
        expected: what it returns of the same, in NumPy; the indices come flat.
    """

    def register(function: Copy) -> Copy:
        COPIES[function.__name__] = function, expected
        return function

    return register


def tile(dtype: str, buffer: Any = nl.sbuf) -> Any:
    return nl.ndarray((SIDE, SIDE), dtype, buffer)


def cleared(dtype: str) -> Any:
    """A tile of bytes 0, which is no number in every type."""
    made = tile(dtype)
    nisa.memset(made.view(WORDS[info(dtype).itemsize]), 0)
    return made


def patterns(dtype: str) -> Array:
    """Items as unsigned integers: all there are of 8 bits; of others half are infinite or NaN."""
    word = np.dtype(WORDS[info(dtype).itemsize])
    rng = np.random.default_rng(NAMES.index(dtype))
    if word.itemsize == 1:
        every = np.resize(np.arange(256, dtype=word), SIDE * SIDE)
        return rng.permutation(every).reshape(SIDE, SIDE)
    found = rng.integers(0, np.iinfo(word).max, (SIDE, SIDE), word, endpoint=True)
    special = rng.random(found.shape) < 0.5
    return np.where(special, found | word.type(EXPONENT.get(dtype, 0)), found)


def turned(x: Array, _: Array) -> Array:
    return x.T


@copy()
def dma_copy(src: Any, _: Any, dtype: str) -> Any:
    between, out = tile(dtype, nl.private_hbm), tile(dtype)
    nisa.dma_copy(between, src)
    nisa.dma_copy(out, between)
    return out


@copy(turned)
def dma_copy_permuted(src: Any, _: Any, dtype: str) -> Any:
    between, out = tile(dtype, nl.private_hbm), tile(dtype)
    nisa.dma_copy(between, src)
    nisa.dma_copy(out, between.permute((1, 0)))
    return out


@copy(lambda x, i: x[i])
def dma_copy_gathers(src: Any, index: Any, dtype: str) -> Any:
    between, out = tile(dtype, nl.private_hbm), tile(dtype)
    nisa.dma_copy(between, src)
    nisa.dma_copy(out, between.ap([[SIDE, SIDE], [1, SIDE]], vector_offset=index))
    return out


@copy(lambda x, i: x[np.argsort(i)])
def dma_copy_scatters(src: Any, index: Any, dtype: str) -> Any:
    between, out = nl.zeros((SIDE, SIDE), dtype, nl.private_hbm), tile(dtype)
    nisa.dma_copy(between.ap([[SIDE, SIDE], [1, SIDE]], vector_offset=index), src)
    nisa.dma_copy(out, between)
    return out


@copy(lambda x, i: np.where(i[:, None] < 20, x[i], x.dtype.type(0)))
def dma_copy_skips(src: Any, index: Any, dtype: str) -> Any:
    between, out = nl.ndarray((20, SIDE), dtype, nl.private_hbm), cleared(dtype)
    nisa.dma_copy(between, src[:20])
    nisa.dma_copy(
        out,
        between.ap([[SIDE, SIDE], [1, SIDE]], vector_offset=index),
        oob_mode=nisa.oob_mode.skip,
    )
    return out


@copy()
def dynamic_slices(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)

    def body(i: Any) -> None:
        from_, to = (t.ap([[SIDE, SIDE], [1, 1]], scalar_offset=i, indirect_dim=1)
                     for t in (src, out))  # fmt: skip
        nisa.tensor_copy(to, from_)

    nl.fori_loop(0, SIDE, body)
    return out


@copy(lambda x, _: x[:, ::-1])
def tensor_copy(src: Any, _: Any, dtype: str) -> Any:
    forward, out = tile(dtype), tile(dtype)
    for engine in ("vector", "scalar", "gpsimd"):
        nisa.tensor_copy(forward, src, engine=getattr(nisa.engine, engine))
        src = forward
    nisa.tensor_copy(out, forward.ap([[SIDE, SIDE], [-1, SIDE]], offset=SIDE - 1))
    return out


@copy()
def assignment(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype, nl.psum)
    out[...] = src
    back = tile(dtype)
    back[...] = out
    return back


@copy(lambda x, _: np.broadcast_to(x[3], x.shape))
def partition_broadcast(src: Any, _: Any, dtype: str) -> Any:
    between, out = tile(dtype, nl.private_hbm), tile(dtype)
    nisa.dma_copy(between, src)
    nisa.dma_copy(out, between[3:4, :].broadcast(0, SIDE))
    return out


@copy(lambda x, i: np.where(i % 2 != 0, x, x.dtype.type(0)))
def tensor_copy_predicated(src: Any, index: Any, dtype: str) -> Any:
    if info(dtype).is_packed:
        return None
    row = nl.ndarray((1, SIDE), nl.int32, nl.private_hbm)
    nisa.dma_copy(row, index)
    numbers, chosen = tile("int32"), tile("uint8")
    nisa.dma_copy(numbers, row.broadcast(0, SIDE))
    nisa.tensor_scalar(chosen, numbers, op0=nl.bitwise_and, operand0=1)
    out = cleared(dtype)
    nisa.tensor_copy_predicated(out, src, chosen)
    return out


@copy(lambda x, _: np.where(np.tri(SIDE, dtype=bool), x, x.dtype.type(0)))
def affine_select(src: Any, _: Any, dtype: str) -> Any:
    if info(dtype).is_packed or dtype == "float8_e8m0fnu":
        return None
    out = tile(dtype)
    nisa.affine_select(out, [[-1, SIDE]], 1, src, 0.0, cmp_op=nl.greater_equal)
    return out


@copy(turned)
def nc_transpose_vector(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.nc_transpose(out, src, engine=nisa.engine.vector)
    return out


@copy(turned)
def nc_transpose_tensor(src: Any, _: Any, dtype: str) -> Any:
    out, back = tile(dtype, nl.psum), tile(dtype)
    nisa.nc_transpose(out, src)
    nisa.tensor_copy(back, out)
    return back


@copy(turned)
def nc_matmul_transposes(src: Any, _: Any, dtype: str) -> Any:
    if dtype not in INPUTS:
        return None
    eye, moving = nl.shared_identity_matrix(SIDE, dtype=nl.uint8), tile(dtype)
    whole = tile("uint8")
    nisa.dma_copy(whole, eye)
    nisa.tensor_copy(moving, whole)
    out, back = tile(dtype, nl.psum), tile(dtype)
    nisa.nc_matmul(out, src, moving, is_transpose=True)
    nisa.tensor_copy(back, out)
    return back


@copy(turned)
def dma_transpose(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.dma_transpose(out, src)
    return out


@copy(turned)
def nc_transpose_in_place(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.dma_copy(out, src)
    nisa.nc_transpose(out, out, engine=nisa.engine.vector)
    return out


@copy(turned)
def dma_transpose_in_place(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.dma_copy(out, src)
    nisa.dma_transpose(out, out)
    return out


@copy(lambda x, _: x[::-1])
def nc_stream_shuffle_in_place(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.dma_copy(out, src)
    nisa.nc_stream_shuffle(out, out, list(range(SIDE))[::-1])
    return out


@copy(lambda x, _: x[::-1])
def nc_stream_shuffle(src: Any, _: Any, dtype: str) -> Any:
    out = tile(dtype)
    nisa.nc_stream_shuffle(out, src, list(range(SIDE))[::-1])
    return out


@copy(lambda x, i: np.concatenate([x[:16, i], x[16:, i]]))
def local_gather(src: Any, index: Any, dtype: str) -> Any:
    places, out = nl.ndarray((SIDE, 2), nl.uint16), tile(dtype)
    # Index k of a group of 16 partitions is in partition k % 16, column k // 16.
    wide = nl.ndarray((SIDE, 1), nl.int32, nl.private_hbm)
    nisa.dma_copy(wide, index)
    for first in (0, 16):
        nisa.dma_copy(places[first : first + 16], wide.reshape((2, 16)).permute((1, 0)))
    nisa.local_gather(out, src, places)
    return out


@copy(lambda x, i: x[:, i])
def nc_n_gather(src: Any, index: Any, dtype: str) -> Any:
    wide = nl.ndarray((SIDE, 1), nl.int32, nl.private_hbm)
    nisa.dma_copy(wide, index)
    places, out = tile("uint32"), tile(dtype)
    nisa.dma_copy(places, wide.reshape((1, SIDE)).broadcast(0, SIDE))
    nisa.nc_n_gather(out, src, places)
    return out


@copy()
def dropout_of_nothing(src: Any, _: Any, dtype: str) -> Any:
    if info(dtype).is_packed or dtype == "float8_e8m0fnu":
        return None
    out = tile(dtype)
    nisa.dropout(out, src, prob=0.0)
    return out


@copy()
def bytes_through_views(src: Any, _: Any, dtype: str) -> Any:
    size = info(dtype).itemsize
    out = tile(dtype)
    raw, back = (t.view(nl.uint8) for t in (src, out))
    middle = nl.ndarray((SIDE, SIDE * size), nl.float8_e4m3)
    nisa.tensor_copy(middle.view(nl.uint8), raw)
    other = nl.ndarray((SIDE, SIDE * size), nl.float8_e5m2)
    pattern = [[SIDE * size, SIDE], [1, SIDE * size]]
    nisa.dma_copy(other.ap(pattern, dtype=nl.float8_e4m3), middle)
    nisa.tensor_copy(back, other.view(nl.uint8))
    return out


@pytest.mark.parametrize("dtype", NAMES)
def test_copies(dtype: str) -> None:
    @nki.jit
    def kernel(bits: Any, order: Any) -> Any:
        src, index = tile(dtype), nl.ndarray((SIDE, 1), nl.int32)
        nisa.dma_copy(src.view(bits.dtype), bits)
        nisa.dma_copy(index, order)
        results = {}
        for name, (function, _) in COPIES.items():
            copied = function(src, index, dtype)
            if copied is not None:
                results[name] = tile(bits.dtype, nl.shared_hbm)
                nisa.dma_copy(results[name].view(dtype), copied)
        return results

    bits = patterns(dtype)
    order = np.random.default_rng(7).permutation(SIDE).astype(np.int32)
    for name, result in kernel(bits, order[:, None]).items():
        np.testing.assert_array_equal(result, COPIES[name][1](bits, order), name)


@pytest.mark.parametrize("dtype", NAMES)
def test_arguments_and_results_of_the_type(dtype: str) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        src, out = tile(x.dtype), tile(x.dtype, nl.shared_hbm)
        nisa.dma_copy(src, x)
        nisa.dma_copy(out, src)
        return out, x

    bits = patterns(dtype)
    for result in kernel(bits.view(info(dtype).numpy)):
        np.testing.assert_array_equal(np.asarray(result).view(bits.dtype), bits)


@pytest.mark.parametrize("dtype", NAMES)
def test_between_cores(dtype: str) -> None:
    @nki.jit
    def kernel(bits: Any) -> Any:
        mine, theirs = tile(dtype), tile(dtype)
        nisa.dma_copy(mine.view(bits.dtype), bits)
        other = 1 - nl.program_id(0)
        nisa.sendrecv(mine, theirs, send_to_rank=other, recv_from_rank=other, pipe_id=0)
        out = tile(bits.dtype, nl.shared_hbm)
        half = nl.ds(16 * nl.program_id(0), 16)
        nisa.dma_copy(out[half].view(dtype), theirs[half])
        return out

    bits = patterns(dtype)
    np.testing.assert_array_equal(kernel[2](bits), bits)


@pytest.mark.parametrize("dtype", NAMES)
def test_between_ranks(dtype: str) -> None:
    group = ReplicaGroup([[0, 1]])

    @nki.jit
    def kernel(bits: Any) -> Any:
        x = bits.view(dtype)
        results = [nl.ndarray((2 * SIDE, SIDE), bits.dtype, nl.shared_hbm)]
        results += [tile(bits.dtype, nl.shared_hbm) for _ in range(2)]
        gathered, permuted, exchanged = (out.view(dtype) for out in results)
        ncc.all_gather([x], [gathered], group, 0)
        ncc.collective_permute([x], [permuted], source_target_pairs=[[0, 1], [1, 0]])
        ncc.all_to_all([x], [exchanged], group, 0)
        return tuple(results)

    x, y = patterns(dtype), patterns(dtype)[::-1].copy()
    for rank, results in enumerate(spmd(kernel, 2)([(x,), (y,)])):
        half = slice(16 * rank, 16 * rank + 16)
        wanted = np.concatenate([x, y]), (y, x)[rank], np.concatenate([x[half], y[half]])
        for got, bits in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(got, bits)
