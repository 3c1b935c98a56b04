"""Random kernels of every form: compiled code and reference give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.text import to_text
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS, compiled, host_id, ulps
from tests.compiler.loop_kernels import Case, kernels


@pytest.mark.every(2)
@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("form", ["pointwise", "rows", "columns"])
def test_random_kernels(form: str, host: Host) -> None:
    @settings(
        max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    @given(kernels(form))
    def check(case: Case) -> None:
        expected, got = case.copies(), case.copies()
        run_kernel(case.kernel, expected)
        compiled([case.kernel], host).run(0, got)
        for slot, (one, other) in enumerate(zip(got, expected, strict=True)):
            distance = ulps(one, other)
            # An addition of whole numbers has no -0.0, but a product of a mask may.
            wrong = (distance > 0) & (one != other)
            if one.dtype in (np.float32, np.complex64):
                # Whole numbers are exact below 2**24; sums beyond it depend on their order, each of
                # at most 2**11 additions by half a unit in the last place.
                size = np.abs(other.astype(np.complex128))
                error = np.abs(one.astype(np.complex128) - other)
                wrong &= (size < 1 << 24) | (error > size * 2.0**-13)
            if wrong.any():
                at = int(np.argmax(wrong))
                message = f"slot {slot}[{at}] is {one[at]}, should be {other[at]}"
                raise AssertionError(f"{message}\n{to_text(case.kernel)}")

    check()


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.S64, DType.U8, DType.F64])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (64, 64), (70, 33), (5, 100), (129, 17)])
def test_transposition(host: Host, dtype: DType, rows: int, columns: int) -> None:
    """z = x^T + y, and z^T besides, for a batch."""
    size = rows * columns
    x = build.load(dtype, 0, (size, 1, rows), 3)
    y = build.load(dtype, 1, (size, columns, 1), 1)
    z = build.op(Op.ADD, x, y)
    kernel = Kernel(
        "transpose",
        (Dim(2), Dim(rows), Dim(columns)),
        (Slot(dtype),) * 4,
        (Store(Access(2, (size, columns, 1), 2), z), Store(Access(3, (size, 1, rows)), z)),
    )
    rng = np.random.default_rng(0)
    buffers = [rng.integers(0, 50, 2 * size + 3).astype(dtype.numpy) for _ in range(4)]
    expected, got = [b.copy() for b in buffers], [b.copy() for b in buffers]
    run_kernel(kernel, expected)
    compiled([kernel], host).run(0, got)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("inner", [1, 2, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("outer", [1, 40, 1000])
def test_short_innermost_dimension(host: Host, inner: int, outer: int) -> None:
    """x * weight[inner] + scale[outer], in place, and the sum over the outer dimension of bias."""
    f32 = DType.F32
    x = build.load(f32, 0, (inner, 1))
    y = build.op(Op.MULTIPLY, x, build.load(f32, 1, (0, 1)))
    y = build.op(Op.ADD, y, build.load(f32, 2, (1, 0)))
    y = build.op(Op.ADD, y, build.convert(build.index(1), f32))
    kernel = Kernel(
        "short", (Dim(outer), Dim(inner)), (Slot(f32),) * 3, (Store(Access(0, (inner, 1)), y),)
    )
    rng = np.random.default_rng(0)
    buffers = [rng.integers(-9, 9, n).astype(np.float32) for n in (outer * inner, inner, outer)]
    expected, got = [b.copy() for b in buffers], [b.copy() for b in buffers]
    run_kernel(kernel, expected)
    compiled([kernel], host).run(0, got)
    np.testing.assert_array_equal(got[0], expected[0])
