"""The kernels of the public guides and of the reference of instructions, restated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import nki
import nki.experimental
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
from nki.errors import NkiError, NkiWarning
from tests.nki.examples.tools import EPS, Array, bf16, output, random, tile

# --- scheduling ----------------------------------------------------------------------------------


@nki.jit()
def reciprocal_plus_one(x: Any) -> Any:
    held = tile(x)
    a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.reciprocal(dst=a, data=held, name="reciprocal")
    nisa.tensor_scalar(dst=b, data=held, op0=nl.add, operand0=1, name="plus")
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=out, src=a)
    return out


@nki.jit
def three_exponentials(*inputs: Any) -> tuple[Any, ...]:
    made: list[Any] = []

    def one(i: int, held: Any) -> None:
        made.append(nl.ndarray(held.shape, held.dtype, buffer=nl.sbuf))
        nisa.activation(dst=made[-1], data=held, op=nl.exp, name=f"step{i}")

    tiles = [tile(x) for x in inputs]
    with nl.no_reorder():
        for i, held in enumerate(tiles):
            one(i, held)
    return tuple(output(held) for held in made)


def test_schedules() -> None:
    x = np.abs(random(4, 8)) + 1
    expected = 1 / x + (x + 1)
    with pytest.warns(NkiWarning, match=r"private HBM.*\[NKI208\]"):
        one = reciprocal_plus_one.with_schedule([("plus", "reciprocal")])(x)
    several = reciprocal_plus_one.with_schedule([("plus", ["reciprocal"])])(x)
    for got in (one, several):
        np.testing.assert_allclose(got, expected, rtol=4 * EPS)
    xs = [random(4, 8, seed=i) for i in range(3)]
    scheduled = three_exponentials.with_schedule([("step1", "step0"), ("step2", "step1")])
    for got, given in zip(scheduled(*xs), xs, strict=True):
        np.testing.assert_allclose(got, np.exp(given), rtol=4 * EPS)


# --- loops of the device -------------------------------------------------------------------------


@nki.jit
def plus_two(x: Any, out: Any) -> None:
    rows, columns = x.shape
    start, stop = nisa.register_alloc(0), nisa.register_alloc(rows)
    for i in nl.dynamic_range(start, stop, 16):
        held = nl.ndarray((16, columns), dtype=x.dtype, buffer=nl.sbuf)
        place = [[columns, 16], [1, columns]]
        nisa.dma_copy(src=x.ap(place, scalar_offset=i), dst=held)
        nisa.tensor_scalar(dst=held, data=held, op0=nl.add, operand0=2.0)
        nisa.dma_copy(src=held, dst=out.ap(place, scalar_offset=i))


@nki.jit
def copied_columns(x: Any, count: Any) -> Any:
    """Copy as many columns as a tensor says; the others are 0."""
    made = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=made, src=nl.zeros(x.shape, dtype=x.dtype, buffer=nl.sbuf))
    limit = nisa.register_alloc()
    nisa.register_load(limit, tile(count))
    one = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)

    def body(i: Any) -> None:
        place: dict[str, Any] = {"scalar_offset": i, "indirect_dim": 1}
        nisa.dma_copy(dst=one, src=x.ap([[1, 1], [1, 1]], **place))
        nisa.dma_copy(dst=made.ap([[1, 1], [1, 1]], **place), src=one)

    nl.fori_loop(0, limit, body)
    return made


@nki.jit
def multiple(value: Any, count: Any, way: str) -> Any:
    """Add a value to 0 as often as a tensor says."""
    held, left = tile(value), tile(count)
    total = nl.zeros((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    one = nl.full((1, 1), 1, dtype=nl.int32, buffer=nl.sbuf)
    register = nisa.register_alloc()
    nisa.register_load(register, left)

    def body(condition: Any) -> Any:
        nisa.tensor_tensor(dst=total, data1=total, data2=held, op=nl.add)
        nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)
        nisa.register_load(condition, left)
        return condition

    if way == "while":
        while register:
            body(register)
    elif way == "former":
        nki.experimental.while_loop(register, body)
    else:
        nl.while_loop(register, body)
    return output(total)


def test_loops() -> None:
    x = random(64, 8)
    out = np.zeros_like(x)
    assert plus_two(x, out) is None
    np.testing.assert_array_equal(out, x + 2)
    row = random(1, 16)
    for count in (0, 5, 16):
        got = copied_columns(row, np.array([[count]], np.int32))
        np.testing.assert_array_equal(got, np.where(np.arange(16) < count, row, 0))
    for way in ("while", "function", "former"):
        for count in (0, 4):
            value = np.array([[0.25]], np.float32)
            got = multiple(value, np.array([[count]], np.int32), way)
            np.testing.assert_array_equal(got, value * count)


@nki.jit
def registers(x: Any) -> Any:
    """Tensors of registers are written [1] in the reference."""
    made = nl.ndarray([1], dtype=nl.int32, buffer=nl.sbuf)
    counter, copy = nisa.register_alloc(7), nisa.register_alloc()
    nisa.register_move(copy, counter)
    nisa.register_store(made, copy)
    bound = nisa.register_alloc(None)
    nisa.register_load(bound, nl.ones([1], dtype=nl.int32, buffer=nl.sbuf))
    for _ in nl.dynamic_range(bound):
        nisa.tensor_tensor(made, made, tile(x), op=nl.add)
    return output(made)


def test_registers() -> None:
    np.testing.assert_array_equal(registers(np.array([[5]], np.int32)), [[12]])


# --- access patterns -----------------------------------------------------------------------------


@nki.jit
def patterns(x: Any, way: str) -> Any:
    rows, columns = x.shape
    held = tile(x)
    if way == "part":
        return output(held.ap(pattern=[[columns, rows], [1, 8]], offset=8))
    if way == "override":
        inner = held.ap(pattern=[[columns, rows], [2, columns // 2]])
        return output(inner.ap(pattern=[[columns, rows], [1, columns // 4]]))
    if way == "bits":
        twice = held.ap([[2 * columns, rows], [1, 2 * columns]], offset=0, dtype=nl.uint16)
        assert twice.shape == (rows, 2 * columns)
        return output(twice)
    pattern = held.get_pattern()
    pattern[0][1] = rows // 2
    return output(held.ap(pattern=pattern))


def test_patterns() -> None:
    x = random(16, 16)
    np.testing.assert_array_equal(patterns(x, "part"), x[:, 8:])
    np.testing.assert_array_equal(patterns(x, "override"), x[:, :4])
    np.testing.assert_array_equal(patterns(x, "bits"), x.view(np.uint16))
    np.testing.assert_array_equal(patterns(x, "half"), x[:8])


@nki.jit
def chosen_batch(x: Any, way: str) -> Any:
    """The batch at an index that is known at run time."""
    _, rows, columns = x.shape
    index = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    out = nl.ndarray((rows, columns), x.dtype, buffer=nl.shared_hbm)
    if way == "select":
        nisa.memset(index, value=2)
        nisa.dma_copy(src=x.select(0, index), dst=out[...])
    else:
        nisa.memset(index, value=2 * rows)
        flat = x.reshape((x.shape[0] * rows, columns))
        source = flat.ap(
            pattern=[[columns, rows], [1, columns]], offset=0, scalar_offset=index, indirect_dim=0
        )
        nisa.dma_copy(src=source, dst=out[...])
    return out


@nki.jit
def every_second_row(x: Any, way: str) -> Any:
    rows, columns = x.shape[0] // 2, x.shape[1]
    index = nl.ndarray((rows, 1), nl.int32, nl.sbuf)
    nisa.iota(index, [[1, 1]], 0, 2)
    out = nl.ndarray((rows, columns), x.dtype, buffer=nl.shared_hbm)
    if way == "select":
        nisa.dma_copy(src=x.vector_select(0, index), dst=out[...])
        return out
    held = nl.ndarray((rows, columns), x.dtype, buffer=nl.sbuf)
    source = x.ap([[columns, rows], [1, columns]], 0, vector_offset=index, indirect_dim=0)
    nisa.dma_copy(src=source, dst=held, name="gather")
    nisa.dma_copy(out, held, name="copy")
    return out


@pytest.mark.parametrize("way", ["select", "ap"])
def test_dynamic_access(way: str) -> None:
    x = random(4, 16, 8)
    np.testing.assert_array_equal(chosen_batch(x, way), x[2])
    np.testing.assert_array_equal(every_second_row(x[0].copy(), way), x[0, ::2])


@nki.jit
def scattered(rows: Any, places: Any, out: Any) -> Any:
    count, width = rows.shape
    target = out.ap([[width, count], [1, width]], vector_offset=tile(places), indirect_dim=0)
    nisa.dma_copy(dst=target, src=tile(rows), oob_mode=nisa.oob_mode.skip)
    return out


@nki.jit
def gathered_transpose(x: Any, index: Any) -> Any:
    """dst[:, i] is the row of x that the i-th index names, column after column of the indices."""
    shape = x.shape[1:]
    sizes = (index.shape[0] * index.shape[1], *shape)
    pattern = [[math.prod(shape[i:]), size] for i, size in enumerate(sizes)]
    source = x.ap(pattern=pattern, vector_offset=tile(index), indirect_dim=0)
    turned = (1, 0) if len(shape) == 1 else (3, 1, 2, 0)
    held = nl.ndarray(tuple(source.shape[i] for i in turned), x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=held, value=0)
    nisa.dma_transpose(dst=held, src=source, axes=turned)
    return output(held)


def test_gathers_and_scatters() -> None:
    rng = np.random.default_rng(0)
    x, rows = random(64, 32), random(16, 32, seed=1)
    places = rng.permutation(64)[:16].astype(np.uint32).reshape(16, 1)
    expected = x.copy()
    expected[places[:, 0]] = rows
    assert scattered(rows, places, x) is x
    np.testing.assert_array_equal(x, expected)
    places[3] = 64  # skipped
    expected[places[places < 64]] = rows[places[:, 0] < 64] + 1
    np.testing.assert_array_equal(scattered(rows + 1, places, x), expected)


@pytest.mark.parametrize(("columns", "shape"), [(1, (128,)), (2, (128,)), (2, (2, 1, 64))])
def test_gathered_transposes(columns: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = bf16(random(512, *shape))
    index = rng.permutation(512)[: 128 * columns].astype(np.uint32).reshape(128, columns)
    chosen = x[index.T.reshape(-1)]
    axes = (1, 0) if len(shape) == 1 else (3, 1, 2, 0)
    np.testing.assert_array_equal(gathered_transpose(x, index), chosen.transpose(axes))


MODES = ("unknown", "none", "swdge", "hwdge")


@nki.jit
def moved(x: Any, mode: str) -> Any:
    held = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    dge = getattr(nisa.dge_mode, mode)
    more = {"engine": nisa.engine.scalar} if mode == "hwdge" else {}
    nisa.dma_copy(dst=held, src=x, dge_mode=dge, name=f"{mode}_load", **more)
    turned = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_transpose(dst=turned, src=x, dge_mode=nisa.dge_mode.unknown, name="turn")
    out = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0], src=held)
    nisa.dma_copy(dst=out[1], src=turned.reshape(x.shape))
    return out


@pytest.mark.parametrize("mode", MODES)
def test_descriptor_modes(mode: str) -> None:
    x = bf16(random(16, 16))
    got = moved(x, mode)
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], x.T)


# --- migration -----------------------------------------------------------------------------------


@nki.jit
def blocks(x: Any) -> Any:
    """Blocks are part of the free dimension, and assigned to."""
    count, rows, columns = x.shape
    out = nl.ndarray(shape=x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    held = nl.ndarray(shape=(rows, count, columns), dtype=x.dtype, buffer=nl.sbuf)
    held[...] = 0
    for i in range(count - 1):
        held[0:rows, i, 0:columns] = nl.load(x[i])
    held[:, count - 1] = held[:, 0]
    for i in range(count):
        nl.store(out[i], held[0:rows, i, 0:columns])
    out[0] = held[:, 1]
    return out


def test_assignment() -> None:
    x = random(4, 16, 8)
    np.testing.assert_array_equal(blocks(x), np.stack([x[1], x[1], x[2], x[0]]))


@nki.jit
def edges(x: Any, step: list[int] = [16, 8]) -> Any:  # noqa: B006 (what the guide shows)
    """Tiles at the edge are cut by slices."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for i in range(0, x.shape[0], step[0]):
        rows = slice(i, min(i + step[0], x.shape[0]))
        for j in range(0, x.shape[1], step[1]):
            here = rows, slice(j, min(j + step[1], x.shape[1]))
            nisa.dma_copy(dst=out[here], src=tile(x[here]))
    return out


def test_edges() -> None:
    x = random(17, 9)
    np.testing.assert_array_equal(edges(x), x)
    np.testing.assert_array_equal(edges(x, step=[5, 4]), x)


@nki.jit
def annotated(x: nt.tensor[4, 8], y: nt.mutable_tensor) -> nt.tensor:  # type: ignore[valid-type]
    nisa.dma_copy(dst=y, src=x)
    return y


def test_annotations() -> None:
    x, y = random(4, 8).astype(np.float16), np.zeros((4, 8), np.float16)
    assert nki.simulate(annotated)(x, y) is y
    np.testing.assert_array_equal(x, y)


# --- instructions --------------------------------------------------------------------------------


@nki.jit
def accumulated(a: Any, b: Any) -> Any:
    total = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for i in nl.static_range(a.shape[0] // 128):
        rows = slice(i * 128, (i + 1) * 128)
        nisa.nc_matmul(
            dst=total, stationary=tile(a[rows, :]), moving=tile(b[rows, :]), accumulate=(i > 0)
        )
    held = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    return output(held)


@nki.jit
def scaled_gelu(x: Any) -> Any:
    held = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activate2(
        dst=held, op=nl.gelu, data=tile(x), imm0=2.0, imm1=0.5, op0=nl.multiply, op1=nl.add
    )
    return output(held)


@nki.jit
def nonzero(x: Any) -> Any:
    rows, columns = x.shape
    found = nl.ndarray((rows, columns + 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(found, 0)
    nisa.nonzero_with_count(dst=found, src=tile(x), index_offset=0, padding_val=-1)
    return output(found)


def gelu(x: Array) -> Array:
    exact = x.astype(np.float64)
    return np.asarray(exact * 0.5 * (1 + np.vectorize(math.erf)(exact / math.sqrt(2))))


def test_instructions() -> None:
    a, b = random(256, 32), random(256, 48, seed=1)
    np.testing.assert_allclose(
        accumulated(a, b), a.T @ b, rtol=0, atol=256 * EPS * float((np.abs(a.T) @ np.abs(b)).max())
    )
    x = random(16, 24)
    np.testing.assert_allclose(scaled_gelu(x), gelu(x * 2 + 0.5), rtol=16 * EPS, atol=4 * EPS)
    flags = (np.random.default_rng(0).random((128, 20)) < 0.3).astype(np.float32)
    got = nonzero(flags)
    for p in range(0, 128, 16):
        places = np.flatnonzero(flags[p])
        np.testing.assert_array_equal(got[p, : len(places)], places)
        np.testing.assert_array_equal(got[p, len(places) : -1], -1)
        assert got[p, -1] == len(places)


def test_what_the_documents_say_is_refused() -> None:
    @nki.jit
    def doubled(x: Any) -> Any:
        held = nl.ndarray((256, 8), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(held, tile(x), tile(x), op=nl.add)

    @nki.jit
    def every_other_partition(x: Any) -> Any:
        return output(tile(x).ap(pattern=[[32, 8], [1, 16]], offset=0))

    @nki.jit
    def to_hbm_from_psum(x: Any) -> Any:
        return output(nl.ndarray(x.shape, nl.float32, buffer=nl.psum))

    x = random(16, 16)
    for kernel, code in (
        (doubled, "004"),
        (every_other_partition, "023"),
        (to_hbm_from_psum, "109"),
    ):
        with pytest.raises(NkiError) as caught:
            kernel(x)
        assert caught.value.code == f"NKI{code}"
