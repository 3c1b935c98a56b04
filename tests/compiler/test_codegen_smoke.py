"""A first check of compiled kernels against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.module import compile_kernels
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import DType, Op

HOSTS = [h for h in {Host.detect(), Host.avx2(), Host.portable()} if h.runs_here()]


@pytest.mark.parametrize("host", HOSTS, ids=lambda h: f"{h.lanes}")
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("rows,columns", [(3, 5), (7, 33), (20, 64), (4, 1000)])
def test_rms_norm(host: Host, dtype: DType, rows: int, columns: int) -> None:
    x = build.convert(build.load(dtype, 0, (columns, 1)), DType.F32)
    w = build.convert(build.load(dtype, 1, (0, 1)), DType.F32)
    total = build.reduce(Op.ADD, build.op(Op.MULTIPLY, x, x))
    mean = build.op(Op.ADD, build.op(Op.DIVIDE, total, float(columns)), 2.0**-20)
    y = build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, build.op(Op.RSQRT, mean)), w)
    kernel = Kernel(
        "rms",
        (Dim(rows), Dim(columns, Kind.REDUCE)),
        (Slot(dtype), Slot(dtype), Slot(dtype)),
        (Store(Access(2, (columns, 1)), build.convert(y, dtype)),),
    )
    rng = np.random.default_rng(0)
    x_data = rng.standard_normal(rows * columns).astype(dtype.numpy)
    w_data = rng.standard_normal(columns).astype(dtype.numpy)
    out, expected = (np.zeros(rows * columns, dtype.numpy) for _ in range(2))
    run_kernel(kernel, [x_data, w_data, expected])
    compile_kernels([kernel], host).run(0, [x_data, w_data, out])
    eps = {DType.F32: 2e-6, DType.BF16: 2.0**-7, DType.F16: 2.0**-10}[dtype]
    np.testing.assert_allclose(out.astype(float), expected.astype(float), rtol=eps, atol=1e-30)
