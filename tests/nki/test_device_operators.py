"""Every operator of the tensor IR on the device, by the samples that the compiler has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy import special

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import TABLE
from neuronxcc.options import Options
from neuronxcc.targets import Engine
from nki.device import lower
from tests.compiler.ir_samples import Sample, in_type, samples

from .device_tools import roundings

FLOATS = frozenset({DType.F32, DType.BF16})
# Roundings of the result's type. One is the cast to the type; composed functions have some more.
ROUNDINGS = 4
MORE = {
    # Sums of three to five products with their rounding, in another order.
    "convolution": 64, "dot_general": 16, "cumulative mul": 8,
}  # fmt: skip
# Results below this have no better error than those of this size, because they are differences.
FLOORS = {
    "erfc": 1.0, "normal_cdf": 1.0, "convolution": 1.0, "dot_general": 1.0,
    "lgamma": 16.0, "digamma": 4.0, "remainder": 1.0, "tan": 1.0, "cosine": 1.0,
}  # fmt: skip
# Samples whose values no instructions give, and why.
EXCLUDED = {
    "cosine f32": "infinity: the angle is reduced by whole turns",
    "tan bf16": "infinity and 3e38: the angle is reduced by whole turns",
    "tan f32": "infinity and 3e38: the angle is reduced by whole turns",
    "remainder bf16": "quotients beyond float32",
    "remainder f32": "quotients beyond float32",
    "convert bf16 u64": "integers of 64 bits are computed by their low 32 bits",
    "convert f32 s64": "integers of 64 bits are computed by their low 32 bits",
    "convert f32 u64": "integers of 64 bits are computed by their low 32 bits",
    "convert bf16 f8e4m3": "rounded twice, by way of float32",
    "convert bf16 f8e4m3fn": "NKI's casts do not saturate",
    "convert f32 f8e4m3fn": "NKI's casts do not saturate",
    "gather along": "an index of 64 bits whose low 32 bits are 0",
    "sort up": "integers of 64 bits are computed by their low 32 bits",
    "sort down": "integers of 64 bits are computed by their low 32 bits",
}


def device_samples() -> Iterator[Sample]:
    """Those in float32 and bfloat16, and the former in the latter."""
    seen = set()
    for sample in samples():
        if {param.dtype for param in sample.graph.params} & FLOATS:
            seen.add(sample.name)
            yield sample
    for op in TABLE:
        for sample in in_type(op, DType.F32, DType.BF16):
            if sample.name not in seen:
                yield sample


SAMPLES = {sample.name: sample for sample in device_samples()}
# Operators without a device lowering in float32 and bfloat16. A row that is wrong fails.
MISSING = {
    Op.COMPLEX: "complex",
    Op.WHILE: "control flow",
    Op.CALL: "inlined by a pass",
    Op.COLLECTIVE_BROADCAST: "no collective of NKI",
}
PARTLY = {
    Op.CONVERT: "to types that no engine has",
    Op.ALL_TO_ALL: "parts of different sizes",
    Op.REDUCE_PRECISION: "formats with another exponent",
}


def op_of(sample: Sample) -> Op:
    name = sample.name.split(" ", maxsplit=1)[0]
    return next(op for op in TABLE if op.value == name)


@pytest.mark.parametrize("name", SAMPLES)
def test_an_operator(name: str) -> None:
    sample = SAMPLES[name]
    program = lower(sample.graph, "trn2", Options(), passes=False)
    op = op_of(sample)
    if op in MISSING:
        assert program.missing
        return
    if program.missing:
        assert op in PARTLY, [section.reason for section in program.missing]
        return
    if name in EXCLUDED:
        pytest.skip(EXCLUDED[name])
    wanted = evaluate(sample.graph, sample.args)
    base = name.split(" ", maxsplit=1)[0]
    most = MORE.get(name, MORE.get(base, ROUNDINGS))
    for got, expected in zip(program.run(sample.args, by="reference"), wanted, strict=True):
        assert roundings(got, expected, FLOORS.get(base, 0.0)) <= most


def test_the_share_of_operators_that_the_device_runs() -> None:
    """Of those that the table gives to an engine of a core: at least one of their types."""
    engines = {Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD, Engine.DMA}
    counted, found = set(), set()
    for sample in samples():
        op = op_of(sample)
        if TABLE[op].engine in engines:
            counted.add(op)
            if op not in found and not lower(sample.graph, "trn2", passes=False).missing:
                found.add(op)
    assert len(counted) > 80
    assert len(found) / len(counted) >= 0.9


def test_the_inverse_error_function_over_its_range() -> None:
    """Near 0, near 1 and between, by its own definition in float64."""
    rng = np.random.default_rng(0)
    near = [1 - np.exp(-rng.uniform(0, 16, 4096)), np.exp(-rng.uniform(0, 80, 4096))]
    ends = [1.0, -1.0, 0.0, 1.5, np.nan]
    x = np.concatenate([rng.uniform(-1, 1, 8192), *near, ends]).astype(np.float32)
    param = parameter(0, TensorType(DType.F32, x.shape), "x")
    graph = Graph("test", (param,), (build.unary(Op.ERFINV, param),))
    (found,) = lower(graph, "trn2", Options(), passes=False).run([x], by="reference")
    expected = special.erfinv(x.astype(np.float64)).astype(np.float32)
    assert roundings(found, expected) <= ROUNDINGS


@pytest.mark.parametrize(("op", "function"), [(Op.LGAMMA, math.lgamma), (Op.DIGAMMA, None)])
def test_gamma_over_its_range(op: Op, function: Callable[[float], float] | None) -> None:
    """Between the poles, far from them, next to zeros, and where there is no value."""
    sizes = np.logspace(-30, 38, 500)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, -3.0, -1e10, 1.0, 2.0, 1.4616321]
    parts = [np.linspace(-20, 20, 4001) + 1e-3, sizes, -sizes[:260], np.array(ends)]
    x = np.concatenate(parts).astype(np.float32)
    param = parameter(0, TensorType(DType.F32, x.shape), "x")
    graph = Graph("test", (param,), (build.unary(op, param),))
    (found,) = lower(graph, "trn2", Options(), passes=False).run([x], by="reference")
    (expected,) = evaluate(graph, [x])
    if function is not None:
        plain = np.array([function(float(v)) for v in x[:4001]], np.float32)
        np.testing.assert_array_equal(expected[:4001], plain)
    else:
        plain = special.digamma(x[:4001].astype(np.float64)).astype(np.float32)
        assert roundings(expected[:4001], plain, 1.0) <= 1
    assert roundings(found, expected, FLOORS[op.value]) <= ROUNDINGS


@pytest.mark.parametrize("number", [-(1 << 63), (1 << 63) - 1, 3])
@pytest.mark.parametrize("on_true", [True, False])
def test_a_choice_of_a_large_number_and_what_bounds_it(number: int, *, on_true: bool) -> None:
    """As places of a grid are: what is no number becomes the least one, then the first place."""
    x = parameter(0, TensorType(DType.S64, (6,)))
    other = build.splat(number, x.type)
    where = build.compare(x, build.splat(2, x.type), "LT")
    made = build.select(where, *((other, x) if on_true else (x, other)))
    made = build.maximum(build.minimum(made, build.splat(9, x.type)), build.splat(0, x.type))
    graph = Graph("test", (x,), (made,))
    values = np.arange(6, dtype=np.int64)
    program = lower(graph, "trn2", Options(), passes=False)
    assert not program.missing
    (found,), (expected,) = program.run([values], by="reference"), evaluate(graph, [values])
    np.testing.assert_array_equal(found, expected)


# Zeros, the least numbers, infinities, NaN, and what is about 1.
ODD = (0.0, -0.0, 1e-45, -1e-45, 1.2e-38, -3e38, 3e38, np.inf, -np.inf, np.nan, 1.0, -1.0, 1.5)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_the_next_number(dtype: DType) -> None:
    """Every pair of odd numbers, in both directions."""
    ways = np.array([(a, b) for a in ODD for b in ODD], np.float32).astype(dtype.numpy)
    x, y = (parameter(i, TensorType(dtype, (len(ways),)), "xy"[i]) for i in range(2))
    graph = Graph("test", (x, y), (build.nextafter(x, y),))
    given = [np.ascontiguousarray(column) for column in ways.T]
    (found,) = lower(graph, "trn2", Options(), passes=False).run(given, by="reference")
    (wanted,) = evaluate(graph, given)
    bits = f"u{dtype.itemsize}"
    numbers = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), ~numbers)
    np.testing.assert_array_equal(found.view(bits)[numbers], wanted.view(bits)[numbers])


@pytest.mark.parametrize("columns", [7, 5000])
def test_running_logaddexp(columns: int) -> None:
    """Long lines in parts; infinities, NaN, and numbers whose exponentials are none."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=columns), np.sort(rng.uniform(-200, 200, columns))]
    for start in (np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0):
        row = rng.normal(size=columns)
        row[:2] = start
        rows.append(row)
        rows.append(np.roll(row, 3))
    x = np.array([*rows, np.full(columns, -np.inf)], np.float32)
    param = parameter(0, TensorType(DType.F32, x.shape), "x")
    graph = Graph("test", (param,), (build.cumulative(param, "logaddexp", 1),))
    (found,) = lower(graph, "trn2", Options(), passes=False).run([x], by="reference")
    (wanted,) = evaluate(graph, [x])
    # Of 5000 sums the rounding adds up as it does in float32 anywhere.
    assert roundings(found, wanted, floor=1.0) <= max(ROUNDINGS, np.sqrt(columns))
