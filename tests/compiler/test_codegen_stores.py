"""Stores that may meet, and epilogues on tiles."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.llvm.scatter import race_free
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.space import simplify
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS, check, compiled, host_id
from tests.compiler.loop_kernels import EXTENTS

COMBINES = (None, Op.ADD, Op.MULTIPLY, Op.MAXIMUM, Op.MINIMUM)


def scatter_rows(
    rows: int, columns: int, dtype: DType, combine: Op | None, *, masked: bool = False
) -> Kernel:
    """table[index[row], column] <combine>= values[row, column]."""
    index = build.load(DType.S64, 0, (1, 0))
    value = build.load(dtype, 1, (columns, 1))
    mask = build.compare("NE", index, 1) if masked else None
    store = Store(Access(2, (0, 1), 2, ((index, columns),)), value, combine, mask)
    slots = (Slot(DType.S64), Slot(dtype), Slot(dtype))
    return Kernel("scatter", (Dim(rows), Dim(columns)), slots, (store,))


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
def test_scatter(host: Host) -> None:
    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.integers(1, 20), EXTENTS | st.sampled_from([300, 1030]), st.integers(1, 6),
        st.sampled_from(COMBINES),
        st.sampled_from([DType.F32, DType.BF16, DType.S64, DType.U8, DType.C64]), st.booleans(),
        st.integers(0, 2**32 - 1),
    )  # fmt: skip
    def property_(
        rows: int, columns: int, table: int, combine: Op | None, dtype: DType, masked: bool,
        seed: int,
    ) -> None:  # fmt: skip
        if dtype is DType.C64 and combine in (Op.MAXIMUM, Op.MINIMUM):
            combine = Op.ADD
        kernel = scatter_rows(rows, columns, dtype, combine, masked=masked)
        rng = np.random.default_rng(seed)
        index = rng.integers(0, table, rows)
        values = rng.integers(0, 3, rows * columns).astype(dtype.numpy)
        start = rng.integers(0, 3, table * columns + 2).astype(dtype.numpy)
        expected, got = start.copy(), start.copy()
        run_kernel(kernel, [index, values, expected])
        compiled([kernel], host).run(0, [index, values, got])
        # Products of threes overflow 8 bits and lose digits of bfloat16 in the same order.
        check(got, expected, 0, f"{combine} {dtype}")

    property_()


def test_what_may_run_at_once() -> None:
    rows = simplify(scatter_rows(10, 64, DType.F32, Op.ADD))
    assert race_free(rows) == [1]
    # Rows that overlap: no dimension is safe.
    index = build.load(DType.S64, 0, (1, 0))
    store = Store(Access(1, (0, 1), 0, ((index, 3),)), build.const(1.0, DType.F32), Op.ADD)
    kernel = Kernel("k", (Dim(10), Dim(8)), (Slot(DType.S64), Slot(DType.F32)), (store,))
    assert race_free(simplify(kernel)) == []
    # A histogram: everything may meet.
    store = Store(Access(1, (0,), 0, ((build.load(DType.S64, 0, (1,)), 1),)),
                  build.const(1.0, DType.F32), Op.ADD)  # fmt: skip
    kernel = Kernel("k", (Dim(1000),), (Slot(DType.S64), Slot(DType.F32)), (store,))
    assert race_free(simplify(kernel)) == []
    index_data = np.random.default_rng(0).integers(0, 7, 1000)
    counts = np.zeros(7, np.float32)
    compiled([kernel], HOSTS[-1]).run(0, [index_data, counts])
    np.testing.assert_array_equal(counts, np.bincount(index_data, minlength=7))


def test_scatter_with_a_reduction_is_refused() -> None:
    total = build.reduce(Op.ADD, build.load(DType.F32, 0, (4, 1)))
    store = Store(Access(1, (1, 0)), total, Op.ADD)
    kernel = Kernel("k", (Dim(3), Dim(4, Kind.REDUCE)), (Slot(DType.F32),) * 2, (store,))
    with pytest.raises(CodegenUnsupported, match="combining store in a kernel with reductions"):
        compiled([kernel], HOSTS[0])


EPILOGUE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p, ctypes.c_int64
)


def run_epilogue(
    address: int,
    buffers: list[np.ndarray[Any, Any]],
    c: np.ndarray[Any, Any],
    tile: tuple[int, int],
) -> None:
    """Runs an epilogue on all tiles of a (batch, m, n) product."""
    table = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
    batch, m, n = c.shape
    for b in range(batch):
        for row in range(0, m, tile[0]):
            for column in range(0, n, tile[1]):
                rows, columns = min(tile[0], m - row), min(tile[1], n - column)
                part = np.full((rows, columns + 3), np.nan, np.float32)
                part[:, :columns] = c[b, row : row + rows, column : column + columns]
                EPILOGUE(address)(
                    table, b, row, rows, column, columns, part.ctypes.data, columns + 3
                )


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("tile", [(4, 16), (3, 7), (64, 64)])
@pytest.mark.parametrize("transposed", [False, True])
def test_epilogue(host: Host, dtype: DType, tile: tuple[int, int], transposed: bool) -> None:
    """relu(c + bias[n]) * scale[m] + residual[b, m, n], and the mask of the relu."""
    batch, m, n = 2, 5, 35
    strides = (m * n, 1, m) if transposed else (m * n, n, 1)
    acc = build.load(DType.F32, 0, (m * n, n, 1))
    bias = build.convert(build.load(dtype, 1, (0, 0, 1)), DType.F32)
    scale = build.convert(build.load(dtype, 2, (0, 1, 0)), DType.F32)
    residual = build.convert(build.load(dtype, 3, strides), DType.F32)
    position = build.convert(build.index(2), DType.F32)
    total = build.op(Op.ADD, acc, bias)
    positive = build.op(Op.MAXIMUM, total, 0.0)
    y = build.op(
        Op.ADD, build.op(Op.ADD, build.op(Op.MULTIPLY, positive, scale), residual), position
    )
    kernel = Kernel(
        "epilogue",
        (Dim(batch), Dim(m), Dim(n)),
        (
            Slot(DType.F32, tile=True),
            Slot(dtype),
            Slot(dtype),
            Slot(dtype),
            Slot(dtype),
            Slot(DType.PRED),
        ),
        (
            Store(Access(4, strides), build.convert(y, dtype)),
            Store(Access(5, (m * n, n, 1)), build.compare("GT", total, 0.0)),
        ),
    )
    rng = np.random.default_rng(3)
    c = rng.standard_normal((batch, m, n)).astype(np.float32)
    inputs = [rng.standard_normal(k).astype(dtype.numpy) for k in (n, m, batch * m * n)]
    expected = [np.zeros(c.size, dtype.numpy), np.zeros(c.size, bool)]
    got = [e.copy() for e in expected]
    run_kernel(kernel, [c.reshape(-1), *inputs, *expected])
    module = compiled([kernel], host)  # the code lives as long as this
    function = module.functions[0]
    assert (function.items, function.scratch_bytes) == (0, 0)
    run_epilogue(function.address, [*inputs, *got], c, tile)
    check(got[0], expected[0], 0, "y")
    check(got[1], expected[1], 0, "mask")


def test_epilogues_are_pointwise() -> None:
    dims = (Dim(1), Dim(4), Dim(4, Kind.REDUCE))
    acc = build.load(DType.F32, 0, (16, 4, 1))
    slots = (Slot(DType.F32, tile=True), Slot(DType.F32))
    store = Store(Access(1, (0, 1, 0)), build.reduce(Op.ADD, acc))
    with pytest.raises(CodegenUnsupported, match="parallel dimensions batch, m, n"):
        compiled([Kernel("k", dims, slots, (store,))], HOSTS[0])
