"""Error bounds of the functions of float32 in units of the last place, and their ends."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.codegen.reference import apply
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS, Array, compiled, host_id

F32 = DType.F32
# Measured on four million arguments, and rounded up. The second number is for hosts without FMA.
BOUNDS: dict[Op, tuple[float, float]] = {
    Op.EXP: (1.0, 1.2),
    Op.EXP2: (1.0, 1.2),
    Op.EXPM1: (1.5, 1.65),
    Op.LOG: (0.9, 0.9),
    Op.LOG1P: (1.5, 1.5),
    Op.TANH: (1.5, 1.5),
    Op.ERF: (1.25, 1.5),
    Op.LOGISTIC: (2.4, 2.4),
    Op.NORMAL_CDF: (7.0, 7.0),  # in the far tail
    Op.NORMAL_PDF: (2.0, 2.0),
    Op.RSQRT: (1.5, 1.5),
    Op.SQRT: (0.5, 0.5),
    Op.LGAMMA: (5.0, 5.0),  # the C library's
    **dict.fromkeys((Op.SIN, Op.COS), (0.6, 0.6)),
    Op.TAN: (1.0, 1.0),  # the C library's for huge arguments
    **dict.fromkeys(
        (
            Op.LOG2, Op.LOG10, Op.SINH, Op.COSH, Op.ASIN, Op.ACOS, Op.ATAN, Op.ASINH, Op.ACOSH,
            Op.ATANH, Op.ERFC, Op.ERFINV, Op.DIGAMMA,
        ),
        (0.51, 0.51),
    ),
}  # fmt: skip
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, 0.5, -0.5]
SPECIAL += [1e-45, -1e-45, 1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1 - 2.0**-24]
SPECIAL += [88.7, 88.8, 89.0, -87.3, -87.4, -103.9, -104.0, 104.0, 127.9, 128.0, -149.0, -150.0]


def ulps(got: Array, exact: Array) -> Array:
    """Distance from the exact value in units of float32's last place at that value."""
    with np.errstate(all="ignore"):
        single = exact.astype(np.float32)
        exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126)))
        distance = np.abs(got.astype(np.float64) - exact) / 2.0 ** (np.maximum(exponent, -126) - 23)
        same = (got == single) | (np.isnan(got) & np.isnan(exact))
        ends = ~np.isfinite(single) | ~np.isfinite(got)
        return np.where(ends, np.where(same, 0.0, np.inf), distance)


def arguments(count: int) -> Array:
    """All kinds of float32: any bits, every magnitude, around 0 and 1, the ends."""
    rng = np.random.default_rng(1)
    parts = [np.array(SPECIAL, np.float32)]
    parts.append(rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32))
    parts += [rng.uniform(-s, s, count).astype(np.float32) for s in (0.01, 1, 4, 20, 110, 1e4)]
    parts.append((1 + rng.uniform(-1, 1, count) * 2.0 ** -rng.integers(0, 25, count)).astype("f"))
    return np.concatenate(parts)


def exact(op: Op, x: Array) -> Array:
    """In float64, by the reference's own functions."""
    scalar = build.op(op, build.load(DType.F64, 0, (1,)))
    with np.errstate(all="ignore"):
        return apply(scalar, [x.astype(np.float64)])


def run(op: Op, host: Host, *operands: Array) -> Array:
    loads = [build.load(F32, i, (1,)) for i in range(len(operands))]
    store = Store(Access(len(operands), (1,)), build.op(op, *loads))
    slots = (Slot(F32),) * (len(operands) + 1)
    out = np.zeros(operands[0].size, np.float32)
    module = compiled([Kernel("f", (Dim(out.size),), slots, (store,))], host)
    module.run(0, [*operands, out])
    return out


@functools.cache
def expected(op: Op) -> tuple[Array, Array]:
    slow = op in (Op.ERF, Op.NORMAL_CDF, Op.ERFC, Op.ERFINV, Op.LGAMMA, Op.DIGAMMA)
    x = arguments(2000 if slow else 50000)
    return x, exact(op, x)


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("op", BOUNDS, ids=repr)
def test_bound(op: Op, host: Host) -> None:
    x, value = expected(op)
    got = run(op, host, x)
    distance = ulps(got, value)
    if op is Op.LGAMMA:
        # The C library's function loses digits next to its zeros.
        distance = np.where(np.abs(value) < 0.5, 0, distance)
    if op is Op.DIGAMMA:
        distance = np.where(np.abs(value) < 0.01, 0, distance)
    worst = int(np.argmax(distance))
    bound = BOUNDS[op][0 if host.fma else 1]
    assert distance[worst] <= bound, (x[worst], got[worst], value[worst], distance[worst])
    zeros = value == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(value[zeros]))


BINARY: dict[Op, Callable[[Array, Array], Any]] = {
    Op.POWER: np.power,
    Op.ATAN2: np.arctan2,
    Op.REMAINDER: np.fmod,
}


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("op", BINARY, ids=repr)
def test_bound_of_two_operands(op: Op, host: Host) -> None:
    rng = np.random.default_rng(2)
    special = np.array([*SPECIAL, 3.0, -3.0, 16777216.0, 8388607.5, 1.5, -2.5], np.float32)
    x, y = (np.ravel(a) for a in np.meshgrid(special, special))
    count = 100000
    x = np.concatenate([x, rng.uniform(-4, 4, count).astype("f"), arguments(count // 10)])
    y = np.concatenate([y, rng.uniform(-30, 30, count).astype("f"), arguments(count // 10)[::-1]])
    y = np.ascontiguousarray(y)
    with np.errstate(all="ignore"):
        value = BINARY[op](x.astype(np.float64), y.astype(np.float64))
    got = run(op, host, x, y)
    distance = ulps(got, value)
    worst = int(np.argmax(distance))
    assert distance[worst] <= 0.51, (x[worst], y[worst], got[worst], value[worst])
    zeros = value == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(value[zeros]))


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("op", [Op.SIN, Op.TANH], ids=repr)
def test_any_number_of_lanes(op: Op, host: Host) -> None:
    """Vectors over a short dimension have 48 lanes; the values are the same."""
    x = arguments(30)[:120]
    load = build.load(F32, 0, (3, 1))
    weight = build.load(F32, 1, (0, 1))
    value = build.op(Op.MULTIPLY, build.op(op, load), weight)
    kernel = Kernel(
        "f", (Dim(40), Dim(3)), (Slot(F32),) * 3, (Store(Access(2, (3, 1)), value),)
    )  # fmt: skip
    out = np.zeros(120, np.float32)
    compiled([kernel], host).run(0, [x, np.ones(3, np.float32), out])
    np.testing.assert_array_equal(out, run(op, host, x))
