"""Normalisations: chains of reductions with functions between them, by rows and by columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS, compiled, host_id

F32 = DType.F32
# A rounding of the result, or of a term of about 10 before an exponential, with room for sums.
RELATIVE = {F32: 4e-6, DType.BF16: 2.0**-7, DType.F16: 2.0**-9}


def rms_norm(x: Scalar, w: Scalar, count: int) -> Scalar:
    total = build.reduce(Op.ADD, build.op(Op.MULTIPLY, x, x))
    mean = build.op(Op.ADD, build.op(Op.DIVIDE, total, float(count)), 2.0**-20)
    return build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, build.op(Op.RSQRT, mean)), w)


def layer_norm(x: Scalar, w: Scalar, count: int) -> Scalar:
    mean = build.op(Op.DIVIDE, build.reduce(Op.ADD, x), float(count))
    distance = build.op(Op.SUBTRACT, x, mean)
    square = build.reduce(Op.ADD, build.op(Op.MULTIPLY, distance, distance))
    variance = build.op(Op.ADD, build.op(Op.DIVIDE, square, float(count)), 2.0**-20)
    return build.op(Op.MULTIPLY, build.op(Op.DIVIDE, distance, build.op(Op.SQRT, variance)), w)


def softmax(x: Scalar, w: Scalar, _count: int) -> Scalar:
    x = build.op(Op.MULTIPLY, x, w)
    e = build.op(Op.EXP, build.op(Op.SUBTRACT, x, build.reduce(Op.MAXIMUM, x)))
    return build.op(Op.DIVIDE, e, build.reduce(Op.ADD, e))


def kernel(
    make: Callable[[Scalar, Scalar, int], Scalar], dtype: DType, shape: tuple[int, int], axis: int
) -> Kernel:
    """x[rows, columns] normalised along an axis, with a weight per element of it."""
    columns = shape[1]
    x = build.convert(build.load(dtype, 0, (columns, 1)), F32)
    w = build.convert(build.load(dtype, 1, (0, 1) if axis else (1, 0)), F32)
    y = build.convert(make(x, w, shape[axis]), dtype)
    dims = tuple(
        Dim(extent, Kind.REDUCE if d == axis else Kind.PARALLEL) for d, extent in enumerate(shape)
    )
    return Kernel(make.__name__, dims, (Slot(dtype),) * 3, (Store(Access(2, (columns, 1)), y),))


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("dtype", RELATIVE, ids=repr)
@pytest.mark.parametrize("make", [rms_norm, layer_norm, softmax])
def test_normalisation(
    make: Callable[[Scalar, Scalar, int], Scalar], dtype: DType, axis: int, host: Host
) -> None:
    # One vector, several, tails of all kinds; the last is too long for a row buffer by columns.
    shapes = [(3, 5), (7, 33), (20, 64), (5, 100), (4, 1000), (2, 2050), (1, 1)]
    shapes += [(3000, 3), (300, 40)]
    kernels = [kernel(make, dtype, shape, axis) for shape in shapes]
    module = compiled(kernels, host)
    rng = np.random.default_rng(0)
    for number, (rows, columns) in enumerate(shapes):
        # Every row and column has a spread of about 1: no variance is a small difference.
        spread = np.linspace(-2, 2, rows * columns).reshape(rows, columns)
        spread = spread * rng.permuted(np.sign(np.arange(columns) % 2 - 0.5))
        x = (spread + rng.standard_normal((rows, columns))).reshape(-1).astype(dtype.numpy)
        w = rng.standard_normal(columns if axis else rows).astype(dtype.numpy)
        out, expected = (np.zeros(rows * columns, dtype.numpy) for _ in range(2))
        run_kernel(kernels[number], [x, w, expected])
        module.run(number, [x, w, out])
        np.testing.assert_allclose(
            out.astype(float), expected.astype(float), rtol=RELATIVE[dtype], atol=3e-6
        )


def test_in_place() -> None:
    """Softmax over its own input, and a running sum of squares beside it."""
    rows, columns = 6, 200
    x = build.load(F32, 0, (columns, 1))
    y = softmax(x, build.const(1.0, F32), columns)
    square = build.reduce(Op.ADD, build.op(Op.MULTIPLY, x, x))
    total = build.op(Op.ADD, build.load(F32, 1, (1, 0)), square)
    stores = (Store(Access(0, (columns, 1)), y), Store(Access(1, (1, 0)), total))
    both = Kernel("k", (Dim(rows), Dim(columns, Kind.REDUCE)), (Slot(F32),) * 2, stores)
    rng = np.random.default_rng(1)
    start = [rng.standard_normal(n).astype(np.float32) for n in (rows * columns, rows)]
    expected, got = [b.copy() for b in start], [b.copy() for b in start]
    run_kernel(both, expected)
    for host in HOSTS:
        got = [b.copy() for b in start]
        compiled([both], host).run(0, got)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=4e-6)


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
def test_special_values_in_reductions(host: Host) -> None:
    """NaN wins everywhere and its position is found; infinities add up; the first one counts."""
    rows = np.ones((6, 70), np.float32)
    rows[0, 50] = np.nan
    rows[1, 30] = np.inf
    rows[2, [10, 20]] = -np.inf, np.inf
    rows[3] = -np.inf
    rows[4, [5, 66]] = np.nan
    rows[5] = -0.0
    x = build.load(F32, 0, (70, 1))
    values = [build.reduce(op, x) for op in (Op.ADD, Op.MAXIMUM, Op.MINIMUM)]
    values += [build.arg(op, x, DType.S32) for op in (Op.MAXIMUM, Op.MINIMUM)]
    stores = tuple(Store(Access(i + 1, (1, 0)), v) for i, v in enumerate(values))
    slots = (Slot(F32), *(Slot(v.dtype) for v in values))
    both = Kernel("k", (Dim(6), Dim(70, Kind.REDUCE)), slots, stores)
    got = [rows.reshape(-1), *(np.zeros(6, v.dtype.numpy) for v in values)]
    expected = [b.copy() for b in got]
    run_kernel(both, expected)
    compiled([both], host).run(0, got)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
