"""Kernels with DMA, products, transposes, registers and loops of the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.context import current_run
from nki.dtypes import info
from nki.isa.act import ACTIVATIONS
from nki.recorder import Recorder
from nki.recording import Recording
from nki.reference import run
from tests.nki.lowering_tools import Array, Given, check, dense, items, lowered, record, same

Runner = Callable[[Recording, Sequence[Array]], list[Array]]
Scenario = Callable[[Any, Runner], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a kernel to compare."""
    SCENARIOS[function.__name__] = function
    return function


KINDS = ["float32", "bfloat16", "int32", "uint8", "float8_e4m3", "float16"]


def recorder() -> Recorder:
    found = current_run()
    assert isinstance(found, Recorder)
    return found


def agree(
    kernel: Any,
    *arrays: Array,
    ulps: float = 0,
    least: float | Sequence[float] = 0.0,
    runner: Runner = lowered,
) -> None:
    """Compare the results of a kernel by the reference with those of its program.

    Args:
        kernel: returns one tensor or several.
        arrays: its arguments.
        ulps: see `same`.
        least: see `same`; of all results, or of each.
        runner: runs the recording.
    """
    recording = record(kernel, *arrays)
    wanted = run(recording, [np.array(a) for a in arrays])
    got = runner(recording, arrays)
    bounds = [least] * len(got) if isinstance(least, (int, float)) else least
    for a, b, bound in zip(got, wanted, bounds, strict=True):
        same("result", nki.dtypes.canonical(b.dtype), a.view(b.dtype), b, ulps, bound)


@scenario
def copies_between_memories(draw: Any, runner: Runner) -> None:
    source, target = draw(st.sampled_from(KINDS)), draw(st.sampled_from(KINDS))
    partitions = draw(st.sampled_from([1, 4, 32, 128]))
    permuted = draw(st.booleans())

    @nki.jit
    def kernel(a: Any, before: Any) -> Any:
        tile = nl.ndarray((partitions, 12), target)
        view = a.permute((1, 0, 2)) if permuted else a.reshape((partitions, 4, 3))
        nisa.dma_copy(dst=tile, src=view)
        out = nl.ndarray((partitions, 24), target, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=before)
        nisa.dma_copy(dst=out[:, 1:24:2], src=tile)
        turned = nl.ndarray((3, partitions * 4), source, nl.shared_hbm)
        nisa.dma_copy(dst=turned, src=a.reshape((partitions * 4, 3)).permute((1, 0)))
        return out, turned

    shape = (4, partitions, 3) if permuted else (4 * partitions, 3)
    seed = draw(st.integers(0, 99))
    agree(kernel, items(seed, shape, source), items(seed + 1, (partitions, 24), target),
          runner=runner)  # fmt: skip


@scenario
def rows_by_an_index(draw: Any, runner: Runner) -> None:
    count = draw(st.sampled_from([1, 5, 32, 64]))
    kind = draw(st.sampled_from(KINDS))
    columns = draw(st.sampled_from([1, 3]))

    @nki.jit
    def kernel(table: Any, index: Any, at: Any) -> Any:
        chosen = nl.ndarray(index.shape, index.dtype)
        nisa.dma_copy(dst=chosen, src=index)
        rows = nl.ndarray((count, columns), kind)
        nisa.dma_copy(
            dst=rows, src=table.ap([[6, count], [2, columns]], vector_offset=chosen, offset=1)
        )
        out = nl.zeros((70, 6), kind, nl.shared_hbm)
        place = nl.ndarray(at.shape, at.dtype)
        nisa.dma_copy(dst=place, src=at)
        nisa.dma_copy(dst=out.ap([[6, count], [1, columns]], vector_offset=place), src=rows)
        return out

    rng = np.random.default_rng(draw(st.integers(0, 99)))
    index = rng.integers(0, 40, (count, 1)).astype(np.int32)
    at = rng.permutation(70)[:count].reshape(count, 1).astype(np.int32)
    agree(kernel, items(count, (40, 6), kind), index, at, runner=runner)


@scenario
def scalars_move_operands(draw: Any, runner: Runner) -> None:
    kind = draw(st.sampled_from(["float32", "bfloat16", "int16"]))
    by_register = draw(st.booleans())

    @nki.jit
    def kernel(a: Any, at: Any) -> Any:
        tile = nl.ndarray(a.shape, kind)
        nisa.dma_copy(dst=tile, src=a)
        number = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=number, src=at)
        index = number
        if by_register:
            index = nisa.register_alloc()
            nisa.register_load(index, number)
        moved = tile.ap([[24, 32], [1, 5]], scalar_offset=index, indirect_dim=1)
        nisa.tensor_scalar(dst=moved, data=moved, op0="add", operand0=1.0)
        maximum = nl.ndarray((32, 1), kind)
        nisa.tensor_reduce(dst=maximum, op="maximum", data=moved, axis=1)
        out = nl.ndarray((32, 24), kind, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        small = nl.ndarray((32, 1), kind, nl.shared_hbm)
        nisa.dma_copy(dst=small, src=maximum)
        return out, small

    at = np.array([[draw(st.integers(0, 19))]], np.int32)
    agree(kernel, items(1, (32, 24), kind), at, runner=runner)


PRODUCTS = [
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"),
    ("bfloat16", "float16"), ("float8_e4m3", "float8_e5m2"), ("float8_e5m2", "bfloat16"),
    ("float8_e4m3fn", "float16"),
]  # fmt: skip


@scenario
def products(draw: Any, runner: Runner) -> None:
    left, right = draw(st.sampled_from(PRODUCTS))
    k, m, n = (draw(st.sampled_from([1, 3, 32, 128])) for _ in range(3))
    result = draw(st.sampled_from(["float32", "bfloat16"]))
    double = left.startswith("float8") and right.startswith("float8") and draw(st.booleans())
    turned = draw(st.booleans())
    rows = 2 if double else 1

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x = nl.ndarray((k, rows * m), left)
        nisa.dma_copy(dst=x, src=a)
        y = nl.ndarray((k, rows * n), right)
        nisa.dma_copy(dst=y, src=b)
        out = nl.ndarray((m, 2 * n), result, nl.psum)
        nisa.memset(out, 0)
        dst = out[:, ::2] if turned else out[:, :n]
        x, y = (t.reshape((k, 2, -1)) if double else t for t in (x, y))
        mode = nisa.matmul_perf_mode.double_row if double else nisa.matmul_perf_mode.none
        nisa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=False, perf_mode=mode)
        nisa.nc_matmul(dst=dst, stationary=x, moving=y, accumulate=True, perf_mode=mode)
        tile, back = nl.ndarray(out.shape, result), nl.ndarray(out.shape, result, nl.shared_hbm)
        nisa.tensor_copy(dst=tile, src=out)
        nisa.dma_copy(dst=back, src=tile)
        return back

    a = items(1, (k, rows * m), left, special=False)
    b = items(2, (k, rows * n), right, special=False)
    # Sums of 2 * k * rows products of at most 20 * 20.
    least = (2 * k * rows) ** 2 * 400 * 2.0**-24
    agree(kernel, a, b, ulps=1, least=least, runner=runner)


@scenario
def transposes(draw: Any, runner: Runner) -> None:
    kind = draw(st.sampled_from(KINDS))
    p, f = (draw(st.sampled_from([1, 5, 32])) for _ in range(2))

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x = nl.ndarray((p, 2 * f), kind)
        nisa.dma_copy(dst=x, src=a)
        y = nl.ndarray((f, p), kind)
        nisa.nc_transpose(dst=y, data=x[:, ::2], engine=nisa.engine.vector)
        z = nl.ndarray((f, p), kind, nl.psum)
        nisa.nc_transpose(dst=z, data=x[:, f:], engine=nisa.engine.tensor)
        w = nl.ndarray((5, 4, 3), kind)
        nisa.dma_transpose(dst=w, src=b)
        results = []
        for tile in (y, z, w):
            out = nl.ndarray(tile.shape, kind, nl.shared_hbm)
            copy = nl.ndarray(tile.shape, kind)
            nisa.tensor_copy(dst=copy, src=tile)
            nisa.dma_copy(dst=out, src=copy)
            results.append(out)
        return tuple(results)

    agree(kernel, items(p, (p, 2 * f), kind), items(f, (3, 4, 5), kind), runner=runner)


@scenario
def transposes_by_products(draw: Any, runner: Runner) -> None:
    kind = draw(st.sampled_from(["float32", "bfloat16", "float8_e5m2"]))
    k, m = draw(st.sampled_from([1, 5, 32])), draw(st.sampled_from([1, 3, 128]))
    into = draw(st.sampled_from([kind, "float32"]))
    bad = draw(st.booleans())

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, eye = nl.ndarray((k, m), kind), nl.ndarray((k, k), kind)
        nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=eye, src=b)
        dst = nl.ndarray((m, 2 * k), into, nl.psum)
        nisa.memset(dst, 0)
        nisa.nc_matmul(dst=dst[:, ::2], stationary=x, moving=eye, is_transpose=True)
        copy, out = nl.ndarray(dst.shape, into), nl.ndarray(dst.shape, into, nl.shared_hbm)
        nisa.tensor_copy(dst=copy, src=dst)
        nisa.dma_copy(dst=out, src=copy)
        return out

    rng = np.random.default_rng(k)
    order = np.eye(k)[rng.permutation(k)]
    x, eye = items(k, (k, m), kind), order.astype(info(kind).numpy)
    agree(kernel, x, eye, runner=runner)
    if bad:
        eye[0, 0] += 2
        recording = record(kernel, x, eye)
        with pytest.raises(IndexError, match=r"no identity.*lowering_scenarios.*NKI141"):
            runner(recording, [x, eye])


@scenario
def indices_out_of_bounds(draw: Any, runner: Runner) -> None:
    kind = draw(st.sampled_from(["float32", "int8"]))
    at = draw(st.sampled_from([-1, 20, 1 << 30]))
    vector, skip = draw(st.booleans()), draw(st.booleans())
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error

    @nki.jit
    def kernel(a: Any, index: Any) -> Any:
        chosen = nl.ndarray((4, 1), nl.int32)
        nisa.dma_copy(dst=chosen, src=index)
        tile = nl.zeros((4, 3), kind)
        offset: Any = {"vector_offset": chosen} if vector else {"scalar_offset": chosen[2:3]}
        count = 4 if vector else 1
        nisa.dma_copy(
            dst=tile[:count],
            src=a.ap([[3, count], [1, 3]], indirect_dim=0, **offset),
            oob_mode=mode,
        )
        turned = nl.zeros((20, 3), kind, nl.shared_hbm)
        nisa.dma_copy(
            dst=turned.ap([[3, count], [1, 3]], indirect_dim=0, **offset), src=tile[:count],
            oob_mode=mode,
        )  # fmt: skip
        out = nl.ndarray((4, 3), kind, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out, turned

    index = np.array([[3], [0], [at], [7]], np.int32)
    a = items(3, (20, 3), kind)
    if skip:
        agree(kernel, a, index, runner=runner)
        return
    with pytest.raises(IndexError, match=r"out of bounds.*NKI132"):
        runner(record(kernel, a, index), [a, index])


@scenario
def accumulator_registers(draw: Any, runner: Runner) -> None:
    partitions, columns = draw(st.sampled_from([1, 16, 48, 128])), draw(st.sampled_from([1, 7, 40]))

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, y = nl.ndarray(a.shape, nl.float32), nl.ndarray(a.shape, nl.float32)
        nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=y, src=b)
        results = []

        def result() -> Any:
            made = nl.ndarray((partitions, 1), nl.float32)
            results.append(made)
            return made

        nisa.activation(dst=x, op="copy", data=x, reduce_op="add", reduce_cmd="reset_reduce")
        nisa.tensor_scalar_reduce(
            dst=x, data=x, op0="add", operand0=1.0, reduce_op="maximum", reduce_res=result()
        )
        nisa.activation(
            dst=y, op="copy", data=y, reduce_op="add", reduce_cmd="reduce", reduce_res=result()
        )
        nisa.tensor_scalar_reduce(
            dst=x, data=y, op0="subtract", operand0=1.0, reduce_op="maximum", reduce_cmd="reduce",
            reduce_res=result(), reduce_res_negate=True,
        )  # fmt: skip
        nisa.activation(dst=x, op="copy", data=x, reduce_cmd="idle", reduce_res=result())
        outs = []
        for tile in (*results, x):
            out = nl.ndarray(tile.shape, nl.float32, nl.shared_hbm)
            nisa.dma_copy(dst=out, src=tile)
            outs.append(out)
        return tuple(outs)

    shape = (partitions, columns)
    a, b = (items(seed, shape, "float32", special=False) for seed in (1, 2))
    # Sums of twice as many values as columns, at most 20 each.
    agree(kernel, a, b, least=4 * columns**2 * 20 * 2.0**-24, runner=runner)


@scenario
def columns_by_an_index(draw: Any, runner: Runner) -> None:
    partitions, count = draw(st.sampled_from([16, 32, 64])), draw(st.sampled_from([1, 20, 33]))
    kind, number = (
        draw(st.sampled_from(["bfloat16", "float16"])),
        draw(st.sampled_from(["uint16", "uint32", "int32"])),
    )
    width = draw(st.sampled_from([1, 2]))

    @nki.jit
    def kernel(a: Any, at: Any, b: Any, to: Any) -> Any:
        x, index = nl.ndarray(a.shape, kind), nl.ndarray(at.shape, number)
        nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=index, src=at)
        y = nl.ndarray((partitions, count, width), kind)
        nisa.tensor_copy(dst=y[:, :, 0], src=x.indirect(index, num_elem=count))
        for k in range(1, width):
            nisa.tensor_copy(dst=y[:, :, k], src=y[:, :, 0])
        z, where = nl.zeros((partitions, 80), nl.float32), nl.ndarray(to.shape, number)
        nisa.dma_copy(dst=where, src=to)
        nisa.tensor_scalar(
            dst=z.indirect(where, num_elem=count), data=y[:, :, 0], op0="add", operand0=1.0
        )
        ones = nl.ndarray((partitions, 8), kind)
        nisa.dma_copy(dst=ones, src=b)
        product = nl.ndarray((8, count), nl.float32, nl.psum)
        nisa.nc_matmul(
            dst=product, stationary=ones, moving=x.indirect(index, num_elem=count), accumulate=False
        )
        small = nl.ndarray((8, count), nl.float32)
        nisa.tensor_copy(dst=small, src=product)
        outs = []
        for tile in (y, z, small):
            out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
            nisa.dma_copy(dst=out, src=tile)
            outs.append(out)
        return tuple(outs)

    rng = np.random.default_rng(draw(st.integers(0, 99)))
    columns = -(-count // 16)
    at = rng.integers(0, 40, (partitions, columns)).astype(number)
    to = rng.permuted(np.tile(np.arange(80), (partitions, 1)), axis=1)[:, :columns].astype(number)
    a, b = (items(n, (partitions, n), kind, special=False) for n in (40, 8))
    agree(kernel, a, at, b, to, ulps=1, least=partitions**2 * 400 * 2.0**-24, runner=runner)


@scenario
def rows_turned_by_an_index(draw: Any, runner: Runner) -> None:
    skip = draw(st.booleans())
    columns = draw(st.sampled_from([1, 2]))
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error

    @nki.jit
    def kernel(table: Any, index: Any, add: Any, at: Any) -> Any:
        chosen = nl.ndarray(index.shape, index.dtype)
        nisa.dma_copy(dst=chosen, src=index)
        t = nl.zeros((64, 128 * columns), nl.bfloat16)
        nisa.dma_transpose(
            dst=t, src=table.ap([[64, 128 * columns], [1, 64]], vector_offset=chosen), oob_mode=mode
        )
        out = nl.ndarray(t.shape, t.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=t)
        place, more = nl.ndarray(at.shape, at.dtype), nl.ndarray(add.shape, add.dtype)
        nisa.dma_copy(dst=place, src=at)
        nisa.dma_copy(dst=more, src=add)
        sums = nl.ndarray((50, 8), nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=sums, src=table[0:50, 0:8])
        rows = sums.ap([[8, 20], [1, 8]], vector_offset=place)
        nisa.dma_compute(dst=rows, srcs=[rows, more], reduce_op="add", oob_mode=mode)
        return out, sums

    rng = np.random.default_rng(draw(st.integers(0, 99)))
    most = 90 if skip else 80
    index = rng.integers(-5 if skip else 0, most, (128, columns)).astype(np.uint32)
    at = rng.permutation(60 if skip else 50)[:20].reshape(20, 1).astype(np.int32)
    table, add = items(1, (80, 64), "bfloat16"), items(2, (20, 8), "float32")
    agree(kernel, table, index, add, at, runner=runner)


SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, 2, 3, -2, -3.5, np.inf, -np.inf, np.nan, 1e-3, 300, 7e4, -1e6, 1e-40,
     1e30, -1e30, np.pi, -np.pi, 9, -9, 20, -20, 88, -88, 100, -100, 1e-7],
    np.float32,
)  # fmt: skip


@scenario
def functions_of_special_values(draw: Any, runner: Runner) -> None:
    name = draw(st.sampled_from(["power", *ACTIVATIONS]))
    count = len(SPECIAL)
    if name == "power":
        layout = dense(1, count**2)
        x, y = np.repeat(SPECIAL, count)[None], np.tile(SPECIAL, count)[None]
        operands: dict[str, Any] = {
            "dst": Given(x, "float32", layout), "data1": Given(x, "float32", layout),
            "data2": Given(y, "float32", layout),
        }  # fmt: skip
        check("tensor_tensor", operands, {"op": name}, ulps=2, runner=runner)
        return
    layout = dense(1, count)
    given = Given(SPECIAL[None], "float32", layout)
    operands = {"dst": given, "op": name, "data": given}
    if name == "prelu":
        stages = {"imm0": 0.0, "imm1": 0.0, "op0": "bypass", "op1": "bypass", "relu_param": 0.25}
        check("activate2", {**operands, **stages}, runner=runner)
    else:
        # Differences of float32 values near 1, of which functions are made up, cost some ulps.
        check("activation", operands, ulps=64, least=1e-6, runner=runner)


@scenario
def reductions_in_place(draw: Any, runner: Runner) -> None:
    columns = draw(st.sampled_from([5, 100, 3000]))
    kind = draw(st.sampled_from(["float32", "bfloat16"]))

    @nki.jit
    def kernel(a: Any) -> Any:
        results: list[Any] = []

        def begin() -> tuple[Any, Any]:
            made = nl.ndarray((32, columns), kind), nl.ndarray((32, 1), nl.float32)
            nisa.dma_copy(dst=made[0], src=a)
            results.extend(made)
            return made

        x, total = begin()
        nisa.activation_reduce(
            dst=x, op="square", data=x, scale=0.5, reduce_op="add", reduce_res=total
        )
        x, total = begin()
        nisa.tensor_scalar_reduce(
            dst=x, data=x, op0="multiply", operand0=-2.0, reduce_op="maximum", reduce_res=total
        )
        x, total = begin()
        nisa.activate2(
            dst=x, op="relu", data=x, imm0=3.0, imm1=1.0, op0="multiply", op1="add",
            reduce_op="abs_max", reduce_res=total, reduce_cmd="reset_reduce",
        )  # fmt: skip
        outs = []
        for tile in results:
            out = nl.ndarray(tile.shape, tile.dtype, nl.shared_hbm)
            nisa.dma_copy(dst=out, src=tile)
            outs.append(out)
        return tuple(outs)

    a = items(columns, (32, columns), kind, special=False)
    sums = float((a.astype(np.float64) ** 2).sum(axis=1).max()) / 4
    bounds = [0, columns * sums * 2.0**-24, 0, 0, 0, 0]
    agree(kernel, a, least=bounds, runner=runner)


@scenario
def interleaved_columns(draw: Any, runner: Runner) -> None:
    kind = draw(st.sampled_from(["float32", "bfloat16", "int8"]))
    columns = draw(st.sampled_from([8, 34, 128]))

    @nki.jit
    def kernel(a: Any) -> Any:
        t, u = nl.ndarray(a.shape, kind), nl.ndarray(a.shape, kind)
        nisa.dma_copy(dst=t, src=a)
        nisa.tensor_copy(dst=u[:, ::2], src=t[:, 1::2])
        nisa.tensor_scalar(dst=u[:, 1::2], data=u[:, ::2], op0="multiply", operand0=-1.0)
        nisa.tensor_tensor(dst=t[:, ::2], data1=t[:, 1::2], data2=t[:, ::2], op="maximum")
        nisa.tensor_copy(dst=t[:, 0:3], src=t[:, 1:4])
        results = []
        for tile in (t, u):
            out = nl.ndarray(a.shape, kind, nl.shared_hbm)
            nisa.dma_copy(dst=out, src=tile)
            results.append(out)
        return tuple(results)

    agree(kernel, items(columns, (128, columns), kind, special=False), runner=runner)


@scenario
def sums_of_memories(draw: Any, runner: Runner) -> None:
    del draw

    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray(a.shape, nl.float32, nl.shared_hbm)
        nisa.dma_compute(dst=out, srcs=[a, b, a], reduce_op="add")
        return out

    agree(kernel, items(1, (40, 7), "float32"), items(2, (40, 7), "bfloat16"), runner=runner)


@scenario
def loops_and_registers(draw: Any, runner: Runner) -> None:
    del draw

    @nki.jit
    def kernel(x: Any, count: Any) -> Any:
        out = nl.zeros(x.shape, x.dtype, nl.shared_hbm)
        number = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=number, src=count)
        upper = nisa.register_alloc()
        nisa.register_load(upper, number)
        t = nl.ndarray((1, 4), x.dtype)
        total = nl.zeros((1, 4), nl.float32)
        with recorder().for_loop(0, upper, 2) as i:
            nisa.dma_copy(dst=t, src=x.ap([[4, 1], [1, 4]], scalar_offset=i, indirect_dim=1))
            nisa.tensor_scalar(dst=t, data=t, op0="add", operand0=1.0)
            nisa.tensor_tensor(dst=total, data1=total, data2=t, op="add")
            nisa.dma_copy(dst=out.ap([[4, 1], [1, 4]], scalar_offset=i, indirect_dim=1), src=t)
        with recorder().while_loop(upper) as (current, following):
            nisa.tensor_scalar(dst=total, data=total, op0="multiply", operand0=2.0)
            nisa.tensor_scalar(dst=number, data=number, op0="subtract", operand0=1)
            nisa.register_load(current, number)
            following.append(current)
        sums = nl.ndarray((1, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=sums, src=total)
        register = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        last = nisa.register_alloc(-7)
        nisa.register_store(register, last)
        return out, sums, register

    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    for count in (0, 3, 9):
        agree(kernel, x, np.array([[count]], np.int32), runner=runner)


@scenario
def products_at_an_index(draw: Any, runner: Runner) -> None:
    counted, before = draw(st.booleans()), draw(st.booleans())
    first, second = (draw(st.sampled_from([None, False, True])) for _ in range(2))
    at = draw(st.integers(0, 24))

    @nki.jit
    def kernel(a: Any, b: Any, index: Any) -> Any:
        dirty = nl.ndarray((8, 32), nl.float32, nl.psum)
        nisa.memset(dirty, 7.0)
        x, y = nl.ndarray(a.shape, nl.bfloat16), nl.ndarray(b.shape, nl.bfloat16)
        place, out = nl.ndarray((1, 1), nl.int32), nl.ndarray((8, 32), nl.float32, nl.psum)
        for tile, given in ((x, a), (y, b), (place, index)):
            nisa.dma_copy(tile, given)
        if before:
            nisa.nc_matmul(out[:, 4:12], x, y[:, 4:12])

        def multiply(i: Any, accumulate: Any) -> None:
            dst, moving = (t.ap([[32, t.shape[0]], [1, 8]], scalar_offset=i, indirect_dim=1)
                           for t in (out, y))  # fmt: skip
            nisa.nc_matmul(dst, x, moving, accumulate=accumulate)

        for accumulate in (first, second):
            again = functools.partial(multiply, accumulate=accumulate)
            nl.fori_loop(0, 25, again, 8) if counted else again(place)
        if not counted:
            nisa.nc_matmul(out, x, y)
        copy, back = (
            nl.ndarray((8, 32), nl.float32, buffer) for buffer in (nl.sbuf, nl.shared_hbm)
        )
        nisa.tensor_copy(copy, out)
        nisa.dma_copy(back, copy)
        return back

    rng = np.random.default_rng(at)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((16, 8), (16, 32)))
    agree(kernel, a, b, np.array([[at]], np.int32), runner=runner)
    result = run(
        record(kernel, a, b, np.array([[at]], np.int32)), [a, b, np.array([[at]], np.int32)]
    )
    terms, places = np.zeros(32, int), slice(None) if counted else slice(at, at + 8)
    terms[4:12] += before
    for accumulate in (first, second):
        terms[places] = 1 if accumulate is False else terms[places] + 1
    terms += not counted
    if first is not True:  # which is a finding
        np.testing.assert_array_equal(result[0], (a.T @ b) * terms)
