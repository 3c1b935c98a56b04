"""The public tests of reductions and scans of the first generation, restated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import close, random, returning, summed


def test_bn_stats_and_aggr_of_one_tile() -> None:
    a = random(128, 64, scale=10)

    def statistics(x: Any) -> Any:
        both = nisa.bn_aggr(nisa.bn_stats(x))
        return both[:, 0], both[:, 1]

    mean, variance = returning(statistics)(a)
    close(mean, a.astype(float).mean(1, keepdims=True), rounded=3)
    close(variance, a.astype(float).var(1, keepdims=True), rounded=8)


def test_bn_stats_of_several_tiles_go_to_one() -> None:
    a = random(128, 96, scale=10)

    def statistics(x: Any) -> Any:
        stats = nl.ndarray((128, 6 * 3), dtype=nl.float32)
        p, f = nl.mgrid[0:128, 0:32]
        q, w = nl.mgrid[0:128, 0:6]
        for i in range(3):
            stats[q, i * 6 + w] = nisa.bn_stats(x[p, i * 32 + f], dtype=nl.float32)
        both = nisa.bn_aggr(stats)
        return both[:, 0], both[:, 1]

    mean, variance = returning(statistics)(a)
    close(mean, a.astype(float).mean(1, keepdims=True), rounded=4)
    close(variance, a.astype(float).var(1, keepdims=True), rounded=16)


def test_tensor_reduce_adds_along_the_free_dimension() -> None:
    a = random(128, 64)
    p, f = np.s_[0:128], np.s_[0:64]
    got = returning(lambda x: nisa.tensor_reduce(np.add, x[p, f], axis=[1]))(a)
    close(got, a.astype(float).sum(1, keepdims=True), rounded=summed(64))


def test_reduction_over_dimensions_that_are_not_last() -> None:
    """Two-dimensional pooling, as the programming model shows it."""
    a = random(8, 6, 10)

    def pool(x: Any) -> Any:
        p = nl.arange(8)[:, None, None, None, None]
        y0, y1 = nl.arange(3)[None, :, None, None, None], nl.arange(2)[None, None, :, None, None]
        x0, x1 = nl.arange(5)[None, None, None, :, None], nl.arange(2)[None, None, None, None, :]
        return nl.max(x[p, 2 * y0 + y1, 2 * x0 + x1], axis=[2, 4])

    np.testing.assert_array_equal(returning(pool)(a), a.reshape(8, 3, 2, 5, 2).max((2, 4)))


@pytest.mark.parametrize("batches", [0, 3])
def test_partition_reduce_through_an_output_argument(batches: int) -> None:
    @nki.trace
    def one(a: Any, b: Any) -> None:
        tile = nl.load(a[0:128, 0:8, 0:4])
        nl.store(b[0:1, 0:8, 0:4], nisa.tensor_partition_reduce(np.add, tile))

    @nki.trace
    def several(a: Any, b: Any) -> None:
        for i in nl.affine_range(a.shape[0]):
            nl.store(b[i], nisa.tensor_partition_reduce(np.add, nl.load(a[i])))

    lead = (batches,) if batches else ()
    a = random(*lead, 128, 8, 4)
    b = np.zeros((*lead, 1, 8, 4), np.float32)
    assert nki.simulate_kernel(several if batches else one, a, b) is None
    close(b, a.astype(float).sum(-3, keepdims=True), rounded=summed(128))


@pytest.mark.parametrize(
    ("op", "numpy"), [(nl.add, np.add), (nl.multiply, np.multiply), (nl.max, np.maximum)]
)
@pytest.mark.parametrize("vector", [False, True])
def test_cumulative_runs_along_the_partition(op: Any, numpy: Any, vector: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any, imm0: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.hbm)
        dst = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        number = nl.load(imm0[...]) if vector else imm0
        nisa.tensor_scalar_cumulative(
            src=nl.load(x[...]), dst=dst, op0=nl.add, op1=op, imm0=number, imm1=None,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        nl.store(out, value=dst)
        return out

    x = random(128, 16)
    imm0 = random(128, 1, seed=1) if vector else np.float32(0.5)
    want = numpy.accumulate((x + imm0).astype(np.float32), axis=1)
    np.testing.assert_array_equal(kernel(x, imm0), want)


LOADED = [(nl.add, 1.0, np.add), (nl.multiply, 0.0, np.multiply), (nl.min, 0.0, np.minimum)]


@pytest.mark.parametrize(("op", "initial", "numpy"), LOADED)
def test_cumulative_starts_from_what_is_loaded(op: Any, initial: float, numpy: Any) -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any, imm0: Any, imm1: Any = None) -> Any:
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.hbm)
        dst = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_cumulative(
            src=nl.load(x), dst=dst, op0=nl.add, op1=op, imm0=nl.load(imm0),
            imm1=nl.load(imm1[...]) if imm1 else None, reduce_cmd=nisa.reduce_cmd.load_reduce,
        )  # fmt: skip
        nl.store(out, value=dst)
        return out

    x, ones = np.ones((128, 16), np.float32), np.ones((128, 1), np.float32)
    start = np.full((128, 1), initial, np.float32)
    want = numpy.accumulate(np.concatenate([start, x + 1], axis=1), axis=1)[:, 1:]
    np.testing.assert_array_equal(kernel(x, ones, start), want)


@pytest.mark.parametrize("loads", [False, True])
def test_cumulative_goes_on_from_its_registers(loads: bool) -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any, imm1: Any, command: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.hbm)
        tile, dst = nl.load(x[...]), nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        for reduce_cmd in (command, nisa.reduce_cmd.reduce):
            # The second call was given imm1 too, which its command does not read.
            nisa.tensor_scalar_cumulative(
                src=tile, dst=dst, op0=nl.add, op1=nl.add, imm0=np.float32(0), imm1=imm1,
                reduce_cmd=reduce_cmd,
            )  # fmt: skip
        nl.store(out, value=dst)
        return out

    x = np.ones((128, 16), np.float32)
    command = nisa.reduce_cmd.load_reduce if loads else nisa.reduce_cmd.reset_reduce
    got = kernel(x, np.float32(1) if loads else None, command)
    np.testing.assert_array_equal(got, np.add.accumulate(x, axis=1) + (17 if loads else 16))


def test_scan_is_a_cumulative_sum_with_a_start() -> None:
    @nki.jit(mode="simulation")
    def kernel(x: Any, op: Any, initial: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.hbm)
        dst = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_cumulative(
            src=nl.load(x[...]), dst=dst, op0=nl.add, op1=op, imm0=np.float32(0), imm1=initial,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        )  # fmt: skip
        nl.store(out, value=dst)
        return out

    x = np.ones((128, 16), np.float32)
    np.testing.assert_array_equal(kernel(x, nl.add, np.float32(2)), np.add.accumulate(x, 1) + 2)


def test_tensor_tensor_scan_goes_on_from_a_column() -> None:
    @nki.jit(mode="simulation")
    def kernel(a_tensor: Any, b_tensor: Any) -> Any:
        out = nl.ndarray(a_tensor.shape, dtype=a_tensor.dtype, buffer=nl.shared_hbm)
        a, b = nl.load(a_tensor), nl.load(b_tensor)
        c = nl.ndarray(shape=(128, 64), dtype=nl.float32)
        c[:, 0:32] = nisa.tensor_tensor_scan(
            a[:, 0:32], b[:, 0:32], initial=0, op0=np.multiply, op1=np.add
        )
        c[:, 32:64] = nisa.tensor_tensor_scan(
            a[:, 32:64], b[:, 32:64], initial=c[:, 31], op0=np.multiply, op1=np.add
        )
        nl.store(out, c)
        return out

    a, b = random(128, 64), random(128, 64, seed=1)
    state, want = np.zeros(128), np.empty((128, 64))
    for i in range(64):
        state = want[:, i] = a[:, i].astype(float) * state + b[:, i]
    close(kernel(a, b), want, rounded=2 * 64)
