"""The reference meanings against PyTorch's, or against what the operator's rule says."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from neuronxcc.ir import DType, Graph, Node, Op, TensorType, build, indexing, parameter
from neuronxcc.ir.dtypes import from_numpy
from neuronxcc.ir.reference import evaluate, evaluate_ranks

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-40, -1e-40, 1e30, -1e30, math.inf, -math.inf]
SPECIAL += [math.nan, 2.5, -3.0, 100.0, -100.0, 0.999, 1e-3]


def run(make: Callable[..., Any], *args: np.ndarray) -> Any:
    """Build a graph over arrays and evaluate it: an array, or a list of them."""
    params = [parameter(i, TensorType(from_numpy(a.dtype), a.shape)) for i, a in enumerate(args)]
    node = make(*params)
    nodes = node if isinstance(node, tuple | list) else (node,)
    values = evaluate(Graph("t", tuple(params), tuple(nodes)), args)
    return values[0] if isinstance(node, Node) else values


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


TORCH_UNARY = {
    Op.ABS: torch.abs, Op.NEGATE: torch.neg, Op.CEIL: torch.ceil, Op.FLOOR: torch.floor,
    Op.ROUND_EVEN: torch.round, Op.TRUNC: torch.trunc, Op.EXP: torch.exp, Op.EXP2: torch.exp2,
    Op.EXPM1: torch.expm1, Op.LOG: torch.log, Op.LOG2: torch.log2, Op.LOG10: torch.log10,
    Op.LOG1P: torch.log1p, Op.SQRT: torch.sqrt, Op.RSQRT: torch.rsqrt, Op.SIN: torch.sin,
    Op.COS: torch.cos, Op.TAN: torch.tan, Op.SINH: torch.sinh, Op.COSH: torch.cosh,
    Op.TANH: torch.tanh, Op.ASIN: torch.asin, Op.ACOS: torch.acos, Op.ATAN: torch.atan,
    Op.ASINH: torch.asinh, Op.ACOSH: torch.acosh, Op.ATANH: torch.atanh, Op.ERF: torch.erf,
    Op.ERFC: torch.erfc, Op.ERFINV: torch.erfinv, Op.LGAMMA: torch.lgamma,
    Op.DIGAMMA: torch.digamma, Op.LOGISTIC: torch.sigmoid, Op.NORMAL_CDF: torch.special.ndtr,
    Op.NORMAL_PDF: lambda x: torch.exp(x * x / -2) / math.sqrt(2 * math.pi),
}  # fmt: skip


@pytest.mark.parametrize("op", TORCH_UNARY, ids=lambda op: op.value)
def test_functions_agree_with_torch_in_float64(op: Op) -> None:
    x = np.array([*SPECIAL, *np.linspace(-6, 6, 301), *np.linspace(-1, 1, 101)])
    got = run(lambda p: build.unary(op, p), x)
    want = TORCH_UNARY[op](torch.from_numpy(x)).numpy()
    # PyTorch's float64 functions are within some ulp; digamma near its zero and lgamma are worse.
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
    exact_zero = (want == 0) & (got == 0)
    assert (np.signbit(got) == np.signbit(want))[exact_zero].all()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=lambda d: d.value)
@pytest.mark.parametrize("op", TORCH_UNARY, ids=lambda op: op.value)
def test_functions_are_rounded_once_from_float32(op: Op, dtype: DType) -> None:
    with np.errstate(all="ignore"):
        x = np.array([*SPECIAL, *np.linspace(-6, 6, 101)]).astype(np.float32).astype(dtype.numpy)
        wide = x.astype(np.float64)
        want = run(lambda p: build.unary(op, p), wide).astype(np.float32).astype(dtype.numpy)
    got = run(lambda p: build.unary(op, p), x)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_sign_keeps_zeros_and_nan() -> None:
    got = run(build.sign, f32(-2, -0.0, 0.0, 3, math.nan))
    np.testing.assert_array_equal(got, f32(-1, -0.0, 0.0, 1, math.nan))
    assert list(np.signbit(got[:3])) == [True, True, False]


@pytest.mark.parametrize("op", [Op.MAXIMUM, Op.MINIMUM])
def test_extremes_propagate_nan_and_order_zeros(op: Op) -> None:
    a, b = f32(0.0, -0.0, -0.0, math.nan, 1, math.inf), f32(-0.0, 0.0, -0.0, 1, math.nan, 2)
    got = run(lambda x, y: build.binary(op, x, y), a, b)
    least = op is Op.MINIMUM
    want = (
        f32(-0.0, -0.0, -0.0, math.nan, math.nan, 2)
        if least
        else f32(0, 0, -0.0, *[math.nan] * 2, math.inf)
    )
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got[:3]) == np.signbit(want[:3])).all()


@pytest.mark.parametrize("name", ["int8", "int32", "int64", "uint8"])
def test_integer_division_goes_toward_zero(name: str) -> None:
    info = np.iinfo(name)
    values = [
        v for v in (info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 7, info.max) if v >= info.min
    ]
    a, b = (m.reshape(-1) for m in np.meshgrid(np.array(values, name), np.array(values, name)))
    quotient, rest = run(lambda x, y: (build.divide(x, y), build.remainder(x, y)), a, b)
    bits = info.bits
    for x, y, q, r in zip(a.tolist(), b.tolist(), quotient.tolist(), rest.tolist(), strict=True):
        if y == 0:  # as XLA
            assert (q, r) == (-1 if info.min else info.max, x)
        else:
            exact = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            wrapped = (exact - info.min) % (1 << bits) + info.min
            assert (q, r) == (wrapped, x - exact * y)


def test_integer_power() -> None:
    a = np.array([2, -1, -1, 1, 0, 3, 2, 0], np.int32)
    b = np.array([10, -3, -2, -5, 0, 21, -1, -1], np.int32)
    got = run(build.power, a, b)
    wrapped = (3**21 + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(got, [1024, -1, 1, 1, 1, wrapped, 0, 0])


def test_shifts_out_of_range_shift_everything_out() -> None:
    a, b = np.array([-8, -8, -8, 8], np.int8), np.array([1, 8, -1, 100], np.int8)
    np.testing.assert_array_equal(run(build.shift_left, a, b), [-16, 0, 0, 0])
    np.testing.assert_array_equal(run(build.shift_right_arithmetic, a, b), [-4, -1, -1, 0])
    np.testing.assert_array_equal(run(build.shift_right_logical, a, b), [124, 0, 0, 0])


def test_popcnt() -> None:
    np.testing.assert_array_equal(run(build.popcnt, np.array([0, -1, 5], np.int16)), [0, 16, 2])


CASTS = [d for d in DType if d is not DType.F8E8M0]


@pytest.mark.parametrize("target", CASTS, ids=lambda d: d.value)
@pytest.mark.parametrize(
    "source",
    [DType.F32, DType.F64, DType.BF16, DType.S64, DType.PRED, DType.F8E5M2],
    ids=lambda d: d.value,
)
def test_conversions_agree_with_torch(source: DType, target: DType) -> None:
    values = np.array([0.0, -0.0, 1.0, 1.5, 2.5, 3.49, 0.1, 100.0, 0.0626, 1 + 2**-9 + 2**-30])
    if not target.is_unsigned:
        values = np.concatenate([values, -values])
    if target.is_float:
        values = np.concatenate([values, [math.inf, -math.inf, math.nan, 1e5, 1e39, 65519.99]])
    with np.errstate(all="ignore"):
        x = values[np.isfinite(values)] if source in (DType.S64, DType.PRED) else values
        x = x.astype(np.float32).astype(source.numpy) if source is not DType.F64 else x
    got = run(lambda p: build.convert(p, target), x)
    if target is DType.F8E4M3:
        with np.errstate(all="ignore"):
            want = x.astype(np.float32).astype(ml_dtypes.float8_e4m3).astype(np.float64)
        np.testing.assert_array_equal(got.astype(np.float64), want)
        return
    in_torch = torch.from_numpy(x.astype(np.float64)).to(getattr(torch, source.numpy.name))
    want = in_torch.to(getattr(torch, target.numpy.name))
    wide, host = (
        (torch.complex128, np.complex128) if target.is_complex else (torch.float64, np.float64)
    )
    np.testing.assert_array_equal(got.astype(host), want.to(wide).numpy())


def test_scales_have_no_sign_and_no_zero() -> None:
    x = f32(3, 5, 6, 0, -1, math.nan, math.inf, 2.0**-130, 0.75)
    got = run(lambda p: build.convert(p, DType.F8E8M0), x)
    want = torch.from_numpy(x).to(torch.float8_e8m0fnu)
    np.testing.assert_array_equal(got.astype(np.float64), want.to(torch.float64).numpy())


def test_float_to_integer_saturates_and_takes_nan_to_zero() -> None:
    x = f32(math.nan, math.inf, -math.inf, 3e9, -3e9, 2.9, -2.9, 2147483520)
    got = run(lambda p: build.convert(p, DType.S32), x)
    np.testing.assert_array_equal(
        got, [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2, 2147483520]
    )
    np.testing.assert_array_equal(
        run(lambda p: build.convert(p, DType.S64), f32(math.inf, 9.3e18)), [2**63 - 1] * 2
    )
    np.testing.assert_array_equal(
        run(lambda p: build.convert(p, DType.U8), f32(-1, 256, 255.9)), [0, 255, 255]
    )


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda d: d.value)
def test_dot_accumulates_in_float32(dtype: DType) -> None:
    one, tiny = np.ones((1, 1)), np.full((1, 1024), 2.0**-12)
    lhs = np.concatenate([one, tiny], 1).astype(dtype.numpy)
    rhs = np.ones((1025, 1), dtype.numpy)
    assert run(build.matmul, lhs, rhs) == 1.25  # each addition alone would leave 1


def test_dot_general_orders_batch_then_left_then_right() -> None:
    rng = np.random.default_rng(0)
    lhs = rng.integers(-4, 5, (3, 5, 2, 4)).astype(np.float32)
    rhs = rng.integers(-4, 5, (4, 6, 2, 3)).astype(np.float32)
    got = run(
        lambda a, b: build.dot_general(
            a, b, lhs_batch=(2, 0), rhs_batch=(2, 3), lhs_contract=(3,), rhs_contract=(0,)
        ),
        lhs,
        rhs,
    )
    np.testing.assert_array_equal(got, np.einsum("nmbk,kpbn->bnmp", lhs, rhs))


def test_integer_dot_wraps_in_the_type_of_the_result() -> None:
    x = np.full((1, 2), 100, np.int8)
    assert run(build.matmul, x, x.T) == np.int8((20000 + 128) % 256 - 128)
    assert run(lambda a, b: build.matmul(a, b, DType.S32), x, x.T) == 20000


@pytest.mark.parametrize("kind", ["add", "mul", "min", "max"])
def test_reduce_of_nothing_is_neutral(kind: str) -> None:
    want = {"add": 0, "mul": 1, "min": math.inf, "max": -math.inf}[kind]
    assert (
        run(lambda p: build.reduce(p, kind, 0), np.zeros((0, 2), np.float32)).tolist() == [want] * 2
    )


def test_reductions() -> None:
    x = f32(1, 2, math.nan, 4, 5, 6).reshape(2, 3)
    assert run(lambda p: build.reduce(p, "max", 1), x).tolist()[1] == 6
    assert math.isnan(run(lambda p: build.reduce(p, "max", 1), x)[0])
    assert run(lambda p: build.arg_reduce(p, "max", 1), x).tolist() == [2, 2]
    assert run(lambda p: build.arg_reduce(p, "min", 1), x).tolist() == [2, 0]
    assert run(lambda p: build.arg_reduce(p, "max", 0), f32(3, 3, 1)) == 0
    assert run(lambda p: build.reduce(p, "mul"), np.array([[2, 3], [4, 5]], np.int8)) == 120
    assert run(lambda p: build.reduce(p, "xor"), np.array([1, 3, 7], np.int8)) == 5
    assert run(lambda p: build.reduce(p, "and"), np.array([True, False]))[()] == np.False_
    ones = np.ones(4096, ml_dtypes.bfloat16)
    assert run(lambda p: build.reduce(p, "add"), ones) == 4096


def test_select_and_scatter_is_the_gradient_of_max_pooling() -> None:
    x = torch.randn(1, 2, 7, 6, requires_grad=True, generator=torch.Generator().manual_seed(0))
    y = torch.nn.functional.max_pool2d(x, (3, 2), (2, 1), (1, 1))
    gradient = torch.rand(y.shape)
    y.backward(gradient)
    got = run(
        lambda p, q: build.select_and_scatter(
            p, q, (1, 1, 3, 2), strides=(1, 1, 2, 1), low=(0, 0, 1, 1), high=(0, 0, 1, 1)
        ),
        x.detach().numpy(), gradient.numpy(),
    )  # fmt: skip
    assert x.grad is not None
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["add", "mul", "min", "max", "logaddexp"])
def test_cumulative(kind: str) -> None:
    x = np.array([[1.0, 3, 2, -1], [0, math.nan, 1, 2]])
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "add": torch.cumsum, "mul": torch.cumprod, "min": lambda t, d: torch.cummin(t, d)[0],
        "max": lambda t, d: torch.cummax(t, d)[0], "logaddexp": torch.logcumsumexp,
    }  # fmt: skip
    got = run(lambda p: build.cumulative(p, kind, 1), x)
    np.testing.assert_allclose(got, functions[kind](torch.from_numpy(x), 1).numpy(), rtol=1e-14)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_with_nan_largest(descending: bool) -> None:
    key = f32(2, math.nan, -0.0, 0.0, 2, -math.inf, math.nan, math.inf)
    places = np.arange(8, dtype=np.int32)
    values, order = run(
        lambda a, b: build.results(build.sort([a, b], 0, descending=descending)), key, places
    )
    want = torch.sort(torch.from_numpy(key), stable=True, descending=descending)
    np.testing.assert_array_equal(values, want.values.numpy())
    np.testing.assert_array_equal(order, want.indices.numpy())


def test_topk_takes_the_lower_position_first() -> None:
    x = f32(1, 5, 5, math.nan, 0)
    values, places = run(lambda p: build.results(build.topk(p, 3)), x)
    np.testing.assert_array_equal(values, f32(math.nan, 5, 5))
    assert places.tolist() == [3, 1, 2]
    assert run(lambda p: build.results(build.topk(p, 2, largest=False)), x)[1].tolist() == [4, 0]


def test_dynamic_slices_clamp() -> None:
    x = np.arange(5, dtype=np.float32)
    for start, want in [(-3, [0, 1]), (1, [1, 2]), (9, [3, 4])]:
        assert run(lambda p: build.dynamic_slice(p, [start], [2]), x).tolist() == want  # noqa: B023
    update = f32(8, 9)
    got = run(lambda p, q: build.dynamic_update_slice(p, q, [7]), x, update)
    assert got.tolist() == [0, 1, 2, 8, 9]


def test_index_helpers_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 4)).astype(np.float32)
    i = rng.integers(0, 5, (2, 3))
    np.testing.assert_array_equal(run(lambda p, q: indexing.take(p, q, 1), x, i), x[:, i])
    along = rng.integers(0, 5, (2, 7, 3))
    got = run(lambda p, q: indexing.take_along(p, q, 1), x, along)
    want = torch.gather(torch.from_numpy(x), 1, torch.from_numpy(along))
    np.testing.assert_array_equal(got, want.numpy())
    two = np.stack([rng.integers(0, 4, (2, 2)), rng.integers(0, 3, (2, 2))], -1)
    got = run(lambda p, q: indexing.take_nd(p, q, (2, 0)), x, two)
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1)[two[..., 0], two[..., 1]])
    updates = rng.integers(-3, 4, (3, 2, 3, 4)).astype(np.float32)
    got = run(lambda p, q, u: indexing.put(p, q, u, 1, "add"), np.floor(x), i, updates)
    wanted = torch.from_numpy(np.floor(x)).index_add(
        1, torch.from_numpy(i).reshape(-1), torch.from_numpy(updates).reshape(3, 6, 4)
    )
    np.testing.assert_array_equal(got, wanted.numpy())
    for shape in ((3, 5, 4), (2, 3, 1)):
        source = rng.integers(-3, 4, shape).astype(np.float32)
        where = rng.integers(0, 5, shape)
        got = run(lambda p, q, u: indexing.put_along(p, q, u, 1, "add"), np.floor(x), where, source)
        scattered = torch.from_numpy(np.floor(x)).scatter_add(
            1, torch.from_numpy(where), torch.from_numpy(source)
        )
        np.testing.assert_array_equal(got, scattered.numpy())
    wrapped = run(lambda q: indexing.wrap(q, 5), np.array([-1, 0, -5, 4]))
    assert wrapped.tolist() == [4, 0, 0, 4]


def test_control_flow() -> None:
    s64 = TensorType(DType.S64)
    n, total = parameter(0, s64), parameter(1, s64)
    cond = Graph("more", (n, total), (build.greater(n, 0),))
    body = Graph("step", (n, total), (build.subtract(n, 1), build.add(total, n)))

    def final(a: Node) -> Node:
        return build.get(build.while_(cond, body, [a, build.constant(0, DType.S64)]), 1)

    assert run(final, np.array(10)) == 55
    double = Graph("double", (n,), (build.multiply(n, 2),))
    same = Graph("same", (n,), (n,))

    def choose(selector: Node, a: Node) -> Node:
        return build.conditional(selector, [double, same], [a])

    for pred, want in ((True, 6), (False, 3)):
        assert run(choose, np.array(pred), np.array(3)) == want
    for number, want in ((0, 6), (1, 3), (-1, 3), (7, 3)):
        assert run(choose, np.array(number, np.int32), np.array(3)) == want
    assert run(lambda a: build.call(double, [a]), np.array(4)) == 8


def test_calls_need_someone_to_run_them() -> None:
    x = parameter(0, TensorType(DType.F32, (2,)))
    node = build.host_call("aten::celu", [x.type], [x])
    graph = Graph("g", (x,), (node,))
    with pytest.raises(NotImplementedError, match="calls aten::celu; pass `call` to run it"):
        evaluate(graph, [f32(1, 2)])
    assert evaluate(graph, [f32(1, 2)], lambda _n, a: [a[0] * 3])[0].tolist() == [3, 6]


def test_arguments_are_checked() -> None:
    x = parameter(0, TensorType(DType.F32, (2,)))
    with pytest.raises(TypeError, match=r"argument 0 is f64\[2\]; it must be f32\[2\]"):
        evaluate(Graph("g", (x,), (x,)), [np.zeros(2)])
    with pytest.raises(TypeError, match="'g' takes 1 arguments, got 0"):
        evaluate(Graph("g", (x,), (x,)), [])


def test_collectives_meet() -> None:
    x = parameter(0, TensorType(DType.F32, (4,)))
    group = [(0, 1), (2, 3)]
    outs = (
        build.all_reduce(x, "add", group),
        build.all_gather(x, 0, group),
        build.reduce_scatter(x, "max", 0, group),
        build.all_to_all(x, 0, 0, group),
        build.collective_permute(x, [(0, 1), (1, 2)]),
    )
    args = [np.arange(4, dtype=np.float32) + 10 * rank for rank in range(4)]
    got = evaluate_ranks(Graph("g", (x,), outs), [[a] for a in args])
    np.testing.assert_array_equal(got[1][0], args[0] + args[1])
    np.testing.assert_array_equal(got[2][1], np.concatenate(args[2:]))
    np.testing.assert_array_equal(got[3][2], args[3][2:])
    np.testing.assert_array_equal(got[0][3], [0, 1, 10, 11])
    np.testing.assert_array_equal(got[1][3], [2, 3, 12, 13])
    np.testing.assert_array_equal(
        [got[r][4] for r in range(4)], [0 * args[0], args[0], args[1], 0 * args[0]]
    )
