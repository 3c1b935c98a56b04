"""Every elementwise operator on every type it is defined on, compiled for every kind of host."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.llvm.emission import emit_kernel
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import DType, Group, Op, TensorType
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.operators.definition import Rounding
from neuronxcc.ir.table import TABLE, infer
from tests.compiler.codegen_compare import HOSTS, Array, check, compiled, host_id
from tests.compiler.ir_samples import values

SIZE = 261
OPS: list[Op] = sorted(Group.ELEMENTWISE, key=lambda op: str(op.value))
# Complex functions that there is no code for: kernels with them run otherwise.
NO_COMPLEX = (
    Group.UNARY
    - {Op.ABS, Op.NEGATE, Op.SIGN, Op.CONJ, Op.EXP, Op.LOG}
)  # fmt: skip


def limit(op: Op, source: DType, dtype: DType) -> float:
    """Allowed distance from the reference in ulp of the result's type."""
    if op is Op.ABS and source.is_complex:
        return 1
    if dtype.is_complex:
        return 16 if op in (Op.MULTIPLY, Op.DIVIDE, Op.SIGN) else (64 if op is Op.POWER else 4)
    if TABLE[op].rounding is not Rounding.FUNCTION or not dtype.is_float:
        return 0
    if dtype is DType.F64:
        return 2000 if op in (Op.DIGAMMA, Op.LGAMMA) else 8
    if dtype is DType.F32:
        # Of the normal distribution what test_codegen_math.py bounds: the tail has as many digits.
        return {Op.LGAMMA: 16, Op.DIGAMMA: 16, Op.NORMAL_CDF: 7}.get(op, 2)
    return 1


def cases(op: Op) -> Iterator[tuple[tuple[DType, ...], DType, dict[str, object]]]:
    """Operand types, type of the result, attributes."""
    for dtype in DType:
        if op in (Op.CONVERT, Op.BITCAST_CONVERT):
            attrs: list[dict[str, object]] = [{"dtype": target} for target in DType]
        elif op is Op.COMPARE:
            attrs = [{"direction": d} for d in ("EQ", "NE", "LT", "LE", "GT", "GE")]
        elif op is Op.REDUCE_PRECISION:
            attrs = [{"exponent_bits": e, "mantissa_bits": m} for e, m in ((8, 10), (5, 2), (4, 3))]
        else:
            attrs = [{}]
        count = 1 if op in Group.UNARY | Group.CONVERSION else 3 if op is Op.CLAMP else 2
        types = (dtype,) * count
        if op is Op.SELECT:
            types = (DType.PRED, dtype, dtype)
        for one in attrs:
            try:
                (result,) = infer(op, tuple(TensorType(t, (SIZE,)) for t in types), one)
            except ShapeError:
                continue
            if op is Op.BITCAST_CONVERT and result.shape != (SIZE,):
                continue
            yield types, result.dtype, one


def expression(op: Op, srcs: list[Scalar], dtype: DType, attrs: dict[str, object]) -> Scalar:
    if op is Op.REDUCE_PRECISION:
        bits = [attrs["exponent_bits"], attrs["mantissa_bits"]]
        assert all(isinstance(b, int) for b in bits)
        return build.reduce_precision(srcs[0], *bits)  # type: ignore[arg-type]
    return Scalar.make("op", dtype, tuple(srcs), op=op, direction=str(attrs.get("direction", "")))


def kernel_of(op: Op, types: tuple[DType, ...], dtype: DType, attrs: dict[str, object]) -> Kernel:
    srcs = [build.load(t, i, (1,)) for i, t in enumerate(types)]
    value = expression(op, srcs, dtype, attrs)
    slots = tuple(Slot(t) for t in (*types, dtype))
    store = Store(Access(len(types), (1,)), value)
    return Kernel(op.value, (Dim(SIZE),), slots, (store,))


def operands(op: Op, types: tuple[DType, ...]) -> list[Array]:
    rng = np.random.default_rng(len(op.value))
    arrays = [values(TensorType(t, (SIZE,)), rng) for t in types]
    if op in (Op.SHIFT_LEFT, Op.SHIFT_RIGHT_LOGICAL, Op.SHIFT_RIGHT_ARITHMETIC):
        arrays[1] = rng.integers(0, 70, SIZE).astype(types[1].numpy)
    if op is Op.CONVERT and types[0].is_float:
        wide = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-8, 25, SIZE)
        arrays[0][::2] = wide.astype(np.float32).astype(types[0].numpy)[::2]
    return arrays


@pytest.mark.every(2)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("op", OPS, ids=repr)
def test_operator(op: Op, host: Host) -> None:
    found = list(cases(op))
    assert found, "the operator is defined on no type"
    kernels, kept = [], []
    for types, dtype, attrs in found:
        kernel = kernel_of(op, types, dtype, attrs)
        try:
            emit_kernel(kernel, host, "k")
        except CodegenUnsupported:
            assert any(t.is_complex for t in types), (op, types)
            assert op in NO_COMPLEX
            continue
        kernels.append(kernel)
        kept.append((types, dtype, attrs))
    module = compiled(kernels, host)
    for number, (kernel, (types, dtype, attrs)) in enumerate(zip(kernels, kept, strict=True)):
        arrays = operands(op, types)
        expected, got = (np.zeros(SIZE, dtype.numpy) for _ in range(2))
        run_kernel(kernel, [*arrays, expected])
        module.run(number, [*arrays, got])
        what = f"{op.value} {types} {attrs}"
        if op in (Op.MULTIPLY, Op.DIVIDE, Op.POWER, Op.EXP, Op.LOG, Op.SIGN) and dtype.is_complex:
            # Infinite and NaN operands: which parts of a result are NaN is nobody's rule.
            ordinary = np.all([np.isfinite(a) & (np.abs(a) < 1e18) for a in arrays], axis=0)
            ordinary &= np.isfinite(expected)
            tolerance = limit(op, types[-1], dtype) * float(np.finfo(dtype.numpy).eps)
            scale = np.abs(expected[ordinary]) + 1e-37
            error = np.abs(got[ordinary] - expected[ordinary]) / scale
            assert not error.size or error.max() <= tolerance, what
            continue
        check(got, expected, limit(op, types[-1], dtype), what)


def test_the_types_of_power() -> None:
    """Powers as C99 has them."""
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1e-40, 1e38]
    special += [math.inf, -math.inf, math.nan, 16777217.0, 2.0**24 - 1]
    x, y = (np.ravel(a).astype(np.float32) for a in np.meshgrid(special, special))
    power = build.op(Op.POWER, *(build.load(DType.F32, i, (1,)) for i in (0, 1)))
    store = Store(Access(2, (1,)), power)
    kernel = Kernel("pow", (Dim(x.size),), (Slot(DType.F32),) * 3, (store,))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    for host in HOSTS:
        got = np.zeros_like(x)
        compiled([kernel], host).run(0, [x, y, got])
        check(got, expected, 1, "power")
