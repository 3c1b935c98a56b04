"""The public tests of element-wise instructions of the first generation, restated."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import ULP16, close, random, returning


def test_activation_of_one_tile() -> None:
    a = random(128, 64, scale=10)
    close(returning(lambda x: nisa.activation(op=nl.exp, data=x))(a), np.exp(a.astype(float)))


def test_activation_scales_adds_and_converts() -> None:
    b, c = random(128, 32, scale=10), random(128, 1, seed=1, scale=10)
    kernel = returning(
        lambda x, y: nisa.activation(np.square, x, bias=y, scale=2.0, dtype=nl.bfloat16)
    )
    got = kernel(b, c)
    assert got.dtype == ml_dtypes.bfloat16
    close(got, (2 * b.astype(float) + c) ** 2, ulp=ULP16)


def test_affine_select_takes_a_comparison() -> None:
    a = random(128, 128)

    def lower(x: Any) -> Any:
        p, f = nl.mgrid[0:128, 0:128]
        return nisa.affine_select(pred=f < p, on_true_tile=x[p, f], on_false_value=nl.fp32.min)

    want = np.where(np.tri(128, k=-1, dtype=bool), a, nl.fp32.min)
    np.testing.assert_array_equal(returning(lower)(a), want)


def test_copy_predicated_writes_where_the_predicate_holds() -> None:
    @nki.jit(mode="simulation")
    def kernel(predicate: Any, new: Any, old: Any) -> Any:
        out = nl.ndarray(list(new.shape), dtype=new.dtype, buffer=nl.shared_hbm)
        p, f = nl.mgrid[0:128, 0:32]
        dst = nl.zeros(shape=new.shape, dtype=new.dtype)
        dst[p, f] = nl.load(old)
        nisa.tensor_copy_predicated(src=nl.load(new), dst=dst, predicate=nl.load(predicate))
        nl.store(out, dst)
        return out

    a, b = random(128, 32), random(128, 32, seed=1)
    np.testing.assert_array_equal(kernel(a <= 0.8, a, b), np.where(a <= 0.8, a, b))


@pytest.mark.parametrize("probability", [0.2, "tile"])
def test_dropout_keeps_or_clears(probability: Any) -> None:
    a = 1 + random(128, 64)
    chances = np.linspace(0, 1, 128, dtype=np.float32).reshape(128, 1)
    if probability == "tile":
        got = returning(nisa.dropout)(a, chances)
        assert (got[0] == a[0]).all()
        assert not got[127].any()
    else:
        got = returning(lambda x: nisa.dropout(x, prob=probability))(a)
    kept = got == a
    assert (kept | (got == 0)).all()
    expected = 0.8 if probability == 0.2 else 0.5
    assert abs(kept.mean() - expected) < 0.05  # 128 * 64 draws: four standard deviations are 0.02


def test_iota_takes_affine_expressions() -> None:
    @nki.jit(mode="simulation")
    def kernel() -> Any:
        row, column = nl.arange(0, 64)[None, :], nl.arange(0, 128)[:, None]
        tiles = [
            nisa.iota(expression, dtype=nl.int32)
            for expression in (row, column, row * -1, 5 + column * 2, row + column)
        ]
        outs = [nl.ndarray(t.shape, dtype=nl.float32, buffer=nl.shared_hbm) for t in tiles]
        nl.store(outs[0][0, row], tiles[0])
        nl.store(outs[1][column, 0], tiles[1])
        nl.store(outs[2][0, row], tiles[2])
        nl.store(outs[3][column, 0], tiles[3])
        nl.store(outs[4][column, row], tiles[4])
        return tuple(outs)

    row, column = np.arange(64)[None], np.arange(128)[:, None]
    wanted = (row, column, -row, 5 + 2 * column, row + column)
    for got, want in zip(kernel(), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_memset_returns_a_tile() -> None:
    @nki.jit(mode="simulation")
    def kernel() -> Any:
        out = nl.ndarray([128, 16], dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nisa.memset(shape=(128, 16), value=0.2, dtype=nl.float32)
        nl.store(out[nl.arange(128)[:, None], nl.arange(16)[None, :]], tile)
        return out

    np.testing.assert_array_equal(kernel(), np.full((128, 16), 0.2, np.float32))


DTYPES = [nl.float8_e4m3, nl.float8_e5m2, nl.bfloat16, np.float16, np.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_range_select_selects_and_reduces(dtype: Any) -> None:
    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(x: Any, low: Any, high: Any, op0: Any, op1: Any, start: int, kind: Any) -> Any:
        reduced = nl.ndarray((x.shape[0], 1), dtype=kind, buffer=nl.hbm)
        best = nl.ndarray((x.shape[0], 1), dtype=kind, buffer=nl.sbuf)
        result = nl.ndarray(x.shape, dtype=kind, buffer=nl.sbuf)
        result[...] = nisa.range_select(
            on_true_tile=nl.load(x[...]), comp_op0=op0, comp_op1=op1, bound0=nl.load(low[...]),
            bound1=nl.load(high[...]), reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=best,
            reduce_op=np.max, range_start=start, on_false_value=nl.fp32.min, dtype=kind,
        )  # fmt: skip
        nl.store(reduced[...], value=best[...])
        return result, reduced

    x = random(128, 64).astype(dtype)
    low, high = np.zeros((128, 1), np.float32), np.full((128, 1), 48, np.float32)
    got, reduced = kernel(x, low, high, np.greater_equal, np.less, 32, dtype)
    inside = 32 + np.arange(64) < 48
    with np.errstate(over="ignore"):
        smallest = np.float32(nl.fp32.min).astype(dtype)
    np.testing.assert_array_equal(got.astype(float), np.where(inside, x, smallest).astype(float))
    np.testing.assert_array_equal(reduced.astype(float), x[:, :16].max(1, keepdims=True))


def test_range_select_goes_on_from_its_registers() -> None:
    @nki.jit(mode="simulation", platform_target="trn2")
    def kernel(x: Any, low: Any, high: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.hbm)
        reduced = nl.ndarray((x.shape[0], 1), dtype=np.float32, buffer=nl.hbm)
        tile, bounds = nl.load(x[...]), (nl.load(low[...]), nl.load(high[...]))
        result = nl.ndarray(x.shape, dtype=np.float32, buffer=nl.sbuf)
        best = nl.ndarray((x.shape[0], 1), dtype=np.float32, buffer=nl.sbuf)
        ones = nl.full(x.shape, fill_value=1, dtype=np.float32, buffer=nl.sbuf)
        for i in range(3):
            more: dict[str, Any] = {"reduce_res": best[...]} if i == 2 else {}
            command = nisa.reduce_cmd.reduce if i else nisa.reduce_cmd.reset_reduce
            result[...] = nisa.range_select(
                on_true_tile=tile, comp_op0=np.greater_equal, comp_op1=np.less, bound0=bounds[0],
                bound1=bounds[1], reduce_cmd=command, reduce_op=np.max, range_start=8 + i * 32,
                on_false_value=nl.fp32.min, **more,
            )  # fmt: skip
            if i < 2:
                tile[...] = nl.add(tile, ones)
        nl.store(out[...], value=result[...])
        nl.store(reduced[...], value=best[...])
        return out, reduced

    x = random(128, 64)
    low, high = np.zeros((128, 1), np.float32), np.full((128, 1), 80, np.float32)
    got, reduced = kernel(x, low, high)
    best = np.full((128, 1), nl.fp32.min, np.float32)
    for i in range(3):
        selected = np.where(8 + i * 32 + np.arange(64) < 80, x, np.float32(nl.fp32.min))
        best = np.maximum(best, selected.max(1, keepdims=True))
        x = x + np.float32(1) if i < 2 else x
    np.testing.assert_array_equal(got, selected)
    np.testing.assert_array_equal(reduced, best)


def test_reciprocal_and_copy_of_a_grid() -> None:
    a = 1 + random(128, 32)

    @nki.jit(mode="simulation")
    def kernel(x: Any) -> Any:
        out = nl.ndarray([128, 32], dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x[nl.mgrid[0:128, 0:32]])
        tile = nisa.tensor_copy(nisa.reciprocal(tile), engine=nisa.vector_engine)
        nl.store(out[nl.mgrid[0:128, 0:32]], value=tile)
        return out

    close(kernel(a), 1 / a.astype(float))


@pytest.mark.parametrize("case", ["number", "vector", "reversed"])
def test_select_reduce_writes_to_its_destination(case: str) -> None:
    @nki.jit(mode="simulation")
    def kernel(predicate: Any, on_true: Any, on_false: Any) -> Any:
        result = nl.ndarray(on_true.shape, dtype=nl.float32, buffer=nl.hbm)
        reduced = nl.ndarray((on_true.shape[0], 1), dtype=nl.float32, buffer=nl.hbm)
        dst = nl.ndarray(on_true.shape, dtype=nl.float32, buffer=nl.sbuf)
        best = nl.ndarray((on_true.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.select_reduce(
            dst=dst, predicate=nl.load(predicate), on_true=nl.load(on_true[...]),
            on_false=nl.load(on_false) if case == "vector" else nl.fp32.min,
            reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=best, reduce_op=nl.max,
            reverse_pred=case == "reversed",
        )  # fmt: skip
        nl.store(result, value=dst)
        nl.store(reduced, value=best)
        return result, reduced

    on_true, on_false = random(128, 32), random(128, 1, seed=1)
    predicate = random(128, 32, seed=2) < 0.5
    got, reduced = kernel(predicate, on_true, on_false)
    chosen = ~predicate if case == "reversed" else predicate
    want = np.where(chosen, on_true, on_false if case == "vector" else np.float32(nl.fp32.min))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(reduced, want.max(1, keepdims=True))


def test_tensor_scalar_subtracts_reverses_and_multiplies() -> None:
    a, f = random(64, 32), random(64, 1, seed=1)
    p, x = np.s_[0:64], np.s_[0:32]
    got = returning(lambda t: nisa.tensor_scalar(t[p, x], np.subtract, 1.0))(a)
    np.testing.assert_array_equal(got, a - 1)
    got = returning(lambda t: nisa.tensor_scalar(t, np.subtract, 1.0, reverse0=True))(a)
    np.testing.assert_array_equal(got, 1 - a)

    def affine(t: Any, v: Any) -> Any:
        rows = nl.arange(64)[:, None]
        return nisa.tensor_scalar(
            t[rows, nl.arange(32)[None, :]], op0=np.multiply,
            operand0=v[rows, nl.arange(1)[None, :]], op1=np.add, operand1=2.5,
        )  # fmt: skip

    close(returning(affine)(a, f), a.astype(float) * f + 2.5, rounded=2)


def test_tensor_tensor_adds() -> None:
    a, b = random(128, 32), random(128, 32, seed=1)
    kernel = returning(lambda x, y: nisa.tensor_tensor(x, y, op=nl.add))
    np.testing.assert_array_equal(kernel(a, b), a + b)


SHAPES = [((128, 32), (128, 32)), ((128, 32), (128, 1)), ((128, 32), (1, 32)),
          ((128, 32), (1, 1)), ((128, 1), (1, 32)), ((1, 32), (128, 1))]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_add_broadcasts_like_numpy(shapes: Any) -> None:
    a, b = random(*shapes[0]), random(*shapes[1], seed=1)
    np.testing.assert_array_equal(returning(nl.add)(a, b), a + b)


def test_add_takes_a_number() -> None:
    a = random(128, 32)
    np.testing.assert_array_equal(returning(lambda x: nl.add(x, 2.2))(a), a + np.float32(2.2))


def test_broadcast_to_repeats_a_partition() -> None:
    a = np.arange(64, dtype=np.int32).reshape(1, 64) * 100
    got = returning(lambda x: nl.broadcast_to(x, shape=(128, 64)))(a)
    np.testing.assert_array_equal(got, np.repeat(a, 128, axis=0))
