"""Collectives between ranks against NumPy, each with every operator and several types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.collectives import ReplicaGroup, spmd
from nki.context import current_run
from nki.recorder import Recorder

Array = npt.NDArray[Any]
OPS: dict[Any, Callable[..., Array]] = {
    nl.add: np.add,
    nl.minimum: np.minimum,
    nl.maximum: np.maximum,
}
FLOATS = (np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2)
INTEGERS = (np.int32, np.uint8, np.int16)
RANKS = (2, 3, 4, 8)


pytestmark = pytest.mark.usefixtures("executor", "own_cache")


def arrays(ranks: int, shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        return [
            rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) for _ in range(ranks)
        ]
    return [(rng.standard_normal(shape) * 4).astype(dtype) for _ in range(ranks)]


def folded(op: Any, values: Sequence[Array]) -> Array:
    """The fold in rank order: of floats in float32, of integers exact and saturated."""
    dtype = values[0].dtype
    wide = np.int64 if dtype.kind in "iu" else np.float32
    total = values[0].astype(wide)
    for value in values[1:]:
        total = OPS[op](total, value.astype(wide))
    if dtype.kind in "iu":
        total = np.clip(total, np.iinfo(dtype).min, np.iinfo(dtype).max)
    with np.errstate(over="ignore"):
        return total.astype(dtype)


def everybody(ranks: int) -> ReplicaGroup:
    return ReplicaGroup([list(range(ranks))])


def same(results: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(result, wanted)


@nki.jit
def all_reduce(x: Any, group: Any, op: Any, *, sbuf: bool = False) -> Any:
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    if sbuf:
        a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        ncc.all_reduce([a], [b], group, op)
        nisa.dma_copy(out, b)
    else:
        ncc.all_reduce(srcs=[x], dsts=[out], replica_group=group, op=op)
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
def test_all_reduce(op: Any, dtype: Any, ranks: int) -> None:
    xs = arrays(ranks, (5, 3), dtype)
    results = spmd(all_reduce, ranks)([(x,) for x in xs], group=everybody(ranks), op=op)
    same(results, [folded(op, xs)] * ranks)


@pytest.mark.parametrize("sbuf", [False, True])
def test_all_reduce_within_groups(*, sbuf: bool) -> None:
    xs = arrays(4, (4, 6))
    group = ReplicaGroup([[3, 0], [1, 2]])
    results = spmd(all_reduce, 4)([(x,) for x in xs], group=group, op=nl.add, sbuf=sbuf)
    same(results, [xs[3] + xs[0], xs[1] + xs[2], xs[1] + xs[2], xs[3] + xs[0]])


def test_sums_are_in_the_order_of_the_list() -> None:
    xs = [np.array([[v]], np.float32) for v in (1e8, 1.0, -1e8)]
    for order in ([0, 1, 2], [0, 2, 1]):
        results = spmd(all_reduce, 3)([(x,) for x in xs], group=ReplicaGroup([order]), op=nl.add)
        assert [r.item() for r in results] == [0.0 if order == [0, 1, 2] else 1.0] * 3


def test_all_reduce_in_place_and_several_tensors() -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        ncc.all_reduce([x, y], [y, x], [[0, 1]], nl.add)
        return x, y

    xs, ys = arrays(2, (3, 2)), arrays(2, (3, 2), seed=1)
    sums = folded(nl.add, xs), folded(nl.add, ys)
    results = spmd(kernel, 2)(list(zip(xs, ys, strict=True)))
    for rank, (x, y) in enumerate(results):
        np.testing.assert_array_equal(x, sums[1])
        np.testing.assert_array_equal(y, sums[0])
        assert x is xs[rank]


@nki.jit
def all_gather(x: Any, group: Any, dim: int, *, sbuf: bool = False) -> Any:
    n = len(group.groups[0])
    shape = (*x.shape[:dim], x.shape[dim] * n, *x.shape[dim + 1 :])
    out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
    if sbuf:
        a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(shape, x.dtype)
        nisa.dma_copy(a, x)
        ncc.all_gather([a], [b], group, dim)
        nisa.dma_copy(out, b)
    else:
        ncc.all_gather(srcs=[x], dsts=[out], replica_group=group, collective_dim=dim)
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e4m3fn, np.int8])
@pytest.mark.parametrize(("sbuf", "dim"), [(False, 0), (True, 0), (True, 1)])
def test_all_gather(dim: int, dtype: Any, ranks: int, *, sbuf: bool) -> None:
    xs = arrays(ranks, (5, 3), dtype)
    kernel = spmd(all_gather, ranks)
    results = kernel([(x,) for x in xs], group=everybody(ranks), dim=dim, sbuf=sbuf)
    same(results, [np.concatenate(xs, axis=dim)] * ranks)


@nki.jit
def reduce_scatter(x: Any, group: Any, op: Any, *, sbuf: bool = False) -> Any:
    shape = (x.shape[0] // len(group.groups[0]), *x.shape[1:])
    out = nl.ndarray(shape, x.dtype, nl.shared_hbm)
    if sbuf:
        a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(shape, x.dtype)
        nisa.dma_copy(a, x)
        ncc.reduce_scatter([a], [b], group, 0, op)
        nisa.dma_copy(out, b)
    else:
        ncc.reduce_scatter([x], [out], replica_group=group, collective_dim=0, op=op)
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int16])
@pytest.mark.parametrize("sbuf", [False, True])
def test_reduce_scatter(op: Any, dtype: Any, ranks: int, *, sbuf: bool) -> None:
    xs = arrays(ranks, (ranks * 2, 3), dtype)
    kernel = spmd(reduce_scatter, ranks)
    results = kernel([(x,) for x in xs], group=everybody(ranks), op=op, sbuf=sbuf)
    same(results, np.split(folded(op, xs), ranks))


@nki.jit
def all_to_all(x: Any, group: Any) -> Any:
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    ncc.all_to_all([x], [out], group, 0)
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_all_to_all(dtype: Any, ranks: int) -> None:
    xs = arrays(ranks, (ranks * 2, 3), dtype)
    results = spmd(all_to_all, ranks)([(x,) for x in xs], group=everybody(ranks))
    parts = [np.split(x, ranks) for x in xs]
    same(results, [np.concatenate([p[r] for p in parts]) for r in range(ranks)])


def test_all_to_all_in_place() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        ncc.all_to_all([x], [x], [[0, 1]], 0)
        return x

    xs = arrays(2, (4, 3))
    parts = [np.split(x.copy(), 2) for x in xs]
    results = spmd(kernel, 2)([(x,) for x in xs])
    same(results, [np.concatenate([p[r] for p in parts]) for r in range(2)])


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 5), st.data())
def test_groups_of_any_shape(size: int, rows: int, columns: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(size * 2)))
    group = ReplicaGroup([order[:size], order[size:]])
    xs = arrays(size * 2, (size * rows, columns))
    gathered = spmd(all_gather, size * 2)([(x,) for x in xs], group=group, dim=0)
    scattered = spmd(reduce_scatter, size * 2)([(x,) for x in xs], group=group, op=nl.add)
    for ranks in group.groups:
        whole = np.concatenate([xs[r] for r in ranks])
        parts = np.split(folded(nl.add, [xs[r] for r in ranks]), size)
        for i, rank in enumerate(ranks):
            np.testing.assert_array_equal(gathered[rank], whole)
            np.testing.assert_array_equal(scattered[rank], parts[i])


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_collective_permute(ranks: int, dtype: Any) -> None:
    @nki.jit
    def kernel(x: Any, y: Any, pairs: Any) -> Any:
        ncc.collective_permute([x], [y], pairs)
        return y

    xs, ys = arrays(ranks, (3, 2), dtype), arrays(ranks, (3, 2), dtype, seed=1)
    before = [y.copy() for y in ys]
    pairs = [(0, 1), (1, 0)]  # ranks from 2 on neither send nor receive
    results = spmd(kernel, ranks)(list(zip(xs, ys, strict=True)), pairs=pairs)
    same(results, [xs[1], xs[0], *before[2:]])


def test_permute_to_some() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        ncc.collective_permute([x], [x], [(0, 1), (1, 2)])  # in place: rank 1 sends what it had
        return x

    xs = arrays(4, (2, 2))
    before = [x.copy() for x in xs]
    same(spmd(kernel, 4)([(x,) for x in xs]), [before[0], before[0], before[1], before[3]])


# --- rings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_ring(ranks: int, channels: int) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.collective_permute_implicit(
            srcs_by_channel=[[x[c]] for c in range(channels)],
            dsts_by_channel=[[out[c]] for c in range(channels)],
            replica_group=everybody(ranks),
            channel_ids=list(range(channels)),
        )
        return out

    xs = arrays(ranks, (channels, 3, 2))
    same(spmd(kernel, ranks)([(x,) for x in xs]), [xs[r - 1] for r in range(ranks)])


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32])
def test_ring_with_reduction(ranks: int, op: Any, dtype: Any) -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.collective_permute_implicit_reduce([[x]], [[y]], [[out]], everybody(ranks), op)
        return out

    xs, ys = arrays(ranks, (3, 2), dtype), arrays(ranks, (3, 2), dtype, seed=1)
    results = spmd(kernel, ranks)(list(zip(xs, ys, strict=True)))
    same(results, [folded(op, [xs[r - 1], ys[r - 1]]) for r in range(ranks)])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("loop", [False, True])
def test_ring_all_gather_by_hand(order: list[int], *, loop: bool) -> None:
    """Each step passes on what came in the step before, and the register says whose that is."""
    n = len(order)

    @nki.jit
    def kernel(x: Any) -> Any:
        group = ReplicaGroup([order])
        out = nl.ndarray((1, n * 4), x.dtype, nl.shared_hbm)
        here, there = (nl.ndarray((1, 4), x.dtype, nl.private_hbm) for _ in range(2))
        nisa.dma_copy(here, x)

        def step(i: Any) -> None:
            rank: Any = ncc.collective_permute_implicit_current_processing_rank_id(i, group)
            chunk = out.reshape((n, 4)).ap([[4, 1], [1, 4]], scalar_offset=rank, indirect_dim=0)
            nisa.dma_copy(chunk, here)
            ncc.collective_permute_implicit([[here]], [[there]], group)
            nisa.dma_copy(here, there)

        if loop:
            recorder = current_run()
            assert isinstance(recorder, Recorder)
            with recorder.for_loop(0, n) as i:
                step(i)
        else:
            for k in range(n):
                step(k)
        return out

    xs = arrays(n, (1, 4))
    same(spmd(kernel, n)([(x,) for x in xs]), [np.concatenate(xs, axis=1)] * n)


def test_rank_id_is_a_register_and_a_number() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        rank = ncc.rank_id()
        assert rank + 1 - 1 == rank
        assert 0 <= rank < 4
        assert (2 * rank) // 2 == int(rank)
        assert [5, 6, 7, 8][rank] == 5 + rank
        assert bool(rank) == (rank != 0)
        assert {0: 1, 1: 1, 2: 1, 3: 1}[rank] == 1
        out = nl.ndarray((1, 2), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, x.ap([[2, 1], [1, 2]], scalar_offset=rank, indirect_dim=0))
        table = nl.ndarray((1, 4), nl.int32)
        nisa.iota(table, [[1, 4]], offset=0)
        second = nl.ndarray((1, 1), x.dtype, nl.shared_hbm)
        nisa.dma_copy(second, x.ap([[1, 1], [1, 1]], scalar_offset=rank * 2, indirect_dim=1))
        return out, second

    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    results = spmd(kernel, 4)([(x,)] * 4)
    for rank, (row, first) in enumerate(results):
        np.testing.assert_array_equal(row, x[rank : rank + 1])
        assert first.item() == x[rank, 0]


def test_one_rank_is_rank_0() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        assert ncc.rank_id() == 0
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.all_reduce([x], [out], ReplicaGroup([[0]]), nl.add)
        return out

    x = arrays(1, (2, 2))[0]
    np.testing.assert_array_equal(kernel(x), x)


# --- two cores in each rank ----------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_logical_cores_of_two_reduce_once(ranks: int) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i, t = nl.program_id(0), nl.ndarray((1, 4), x.dtype)
        middle, out = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(t, x[i : i + 1])
        nisa.tensor_scalar(t, t, op0=nl.add, operand0=float(i))
        nisa.dma_copy(middle[i : i + 1], t)
        ncc.all_reduce([middle], [out], everybody(ranks), nl.add)
        return out

    xs = arrays(ranks, (2, 4))
    moved = [x + np.array([[0.0], [1.0]], np.float32) for x in xs]
    results = spmd(kernel[2], ranks)([(x,) for x in xs])
    same(results, [folded(nl.add, moved)] * ranks)
    recording = spmd(kernel, ranks)[2].kernel.prepared([((x,), {}) for x in xs])[0].recording
    assert recording.cores == 2 * ranks
    assert sum(e.template.row.name == "combine" for e in recording.events()) == 1


def test_each_core_has_its_own_tiles() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        i = nl.program_id(0)
        a, b = nl.ndarray((1, 4), x.dtype), nl.ndarray((1, 8), x.dtype)
        nisa.dma_copy(a, x[i : i + 1])
        ncc.all_gather([a], [b], everybody(2), 1)
        out = nl.ndarray((2, 8), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out[i : i + 1], b)
        return out

    xs = arrays(2, (2, 4))
    same(spmd(kernel[2], 2)([(x,) for x in xs]), [np.concatenate(xs, axis=1)] * 2)
