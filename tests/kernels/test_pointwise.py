"""Activations and elementwise arithmetic of the native core against float64.

Errors are in units in the last place (ulp) of the result's dtype. Where the argument z of an
exponential is itself rounded, the result's relative error grows with |z|: e^(z (1 + u)) is off by
|z| u. A factor that may be a denormal number brings an absolute error of half its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.isas import core

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Bits of the significand, exponent of the smallest normal number.
FORMAT = {torch.float32: (24, -126), torch.bfloat16: (8, -126), torch.float16: (11, -14)}
BETA, KAPPA = math.sqrt(2 / math.pi), 0.044715
INF, NAN = math.inf, math.nan
BINARY: list[tuple[int, Callable[..., Tensor]]] = [
    (0, torch.add),
    (1, torch.sub),
    (2, torch.mul),
    (3, torch.div),
]


def no_growth(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def tanh_argument(x: Tensor) -> Tensor:
    return 2 * BETA * (x + KAPPA * x**3)


def ndtr(x: Tensor) -> Tensor:
    result: Tensor = 0.5 * torch.special.erfc(-x * math.sqrt(0.5))
    return result


def bell(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Function:
    """A kernel, its exact value in float64, torch's, and its error bound.

    `ulps` are the float32 ulps for a well conditioned argument, `growth` the |z| of the module's
    docstring.
    """

    number: int
    exact: Callable[[Tensor], Tensor]
    torch: Callable[[Tensor], Tensor]
    ulps: float
    growth: Callable[[Tensor], Tensor] = no_growth


UNARY = {
    "gelu": Function(0, lambda x: x * ndtr(x), functional.gelu, 12, lambda x: x * x / 2),
    "gelu_tanh": Function(
        1,
        lambda x: x * torch.sigmoid(tanh_argument(x)),
        lambda x: functional.gelu(x, approximate="tanh"),
        4,
        lambda x: tanh_argument(x).abs() * 3,
    ),
    "silu": Function(2, lambda x: x * torch.sigmoid(x), functional.silu, 3.5),
    "sigmoid": Function(3, torch.sigmoid, torch.sigmoid, 2.5),
    "tanh": Function(4, torch.tanh, torch.tanh, 1.4),
    "relu": Function(5, torch.relu, torch.relu, 0),
    "exp": Function(6, torch.exp, torch.exp, 1.1),
    "sqrt": Function(7, torch.sqrt, torch.sqrt, 0.5),
    "rsqrt": Function(8, torch.rsqrt, torch.rsqrt, 1.5),
}


def run_unary(name: str, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    core.kernel_unary(UNARY[name].number, x, out)
    return out


def spacing(exact: Tensor, dtype: torch.dtype) -> Tensor:
    bits, smallest = FORMAT[dtype]
    exponent = torch.frexp(exact.abs().clamp_min(2.0**smallest)).exponent - 1
    return torch.ldexp(torch.ones_like(exact), exponent - (bits - 1))


def arguments(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [
            torch.linspace(-20, 20, 100_001),
            torch.linspace(-110, 90, 50_001),
            torch.randn(50_000, generator=generator),
            torch.randn(10_000, generator=generator) * 1e-3,
            torch.randn(10_000, generator=generator) * 1e-38,
            torch.logspace(-45, 38, 5000),
            -torch.logspace(-45, 38, 5000),
        ]
    ).to(dtype)
    return x[x.isfinite()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_error_bounds(isa: str, name: str, dtype: torch.dtype) -> None:
    f = UNARY[name]
    x = arguments(dtype)
    y = run_unary(name, x).double()
    wide = x.double()
    exact = f.exact(wide)
    growth = f.growth(wide).nan_to_num().clamp_max(200)
    relative = (f.ulps + growth) * 2.0**-23  # a step is at most this fraction of a number
    # Half a step of the result, the float32 error (or that of the shorter series used for 16-bit
    # results), and half a float32 denormal step in a factor of x.
    series = {torch.float32: 0.0, torch.bfloat16: 8e-6, torch.float16: 8e-6}[dtype]
    allowed = (relative + series) * exact.abs() + wide.abs().clamp_min(1) * 2.0**-149
    if dtype != torch.float32:
        allowed += 0.5 * spacing(exact, dtype)
    largest = torch.finfo(dtype).max
    fits = exact.abs() < largest * (1 - 2e-3)
    worst = ((y - exact).abs() / allowed)[fits].max().item() if f.ulps else 0.0
    assert worst <= 1, isa
    if f.ulps == 0:
        assert torch.equal(y, exact)


# How many of all 65,536 arguments may round to a neighbour of the exact value's rounding. Most of
# those of bfloat16 are denormal numbers, half of which lies between two of their kind.
WRONG = {torch.bfloat16: 130, torch.float16: 40}


@pytest.mark.parametrize("dtype", WRONG)
@pytest.mark.parametrize("name", UNARY)
def test_all_arguments_of_16_bits(isa: str, name: str, dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    exact = UNARY[name].exact(x.double())
    finite = x.isfinite() & exact.isfinite()
    x, exact = x[finite], exact[finite]
    got, rounded = run_unary(name, x), exact.to(dtype)
    wrong = got != rounded
    assert int(wrong.sum()) <= WRONG[dtype], isa
    # And those are neighbours.
    apart = got[wrong].view(torch.int16).int() - rounded[wrong].view(torch.int16).int()
    same_sign = (got[wrong] < 0) == (rounded[wrong] < 0)
    assert (apart[same_sign].abs() <= 1).all(), isa
    assert (got[wrong][~same_sign].abs() <= torch.finfo(dtype).smallest_normal).all(), isa


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_close_to_torch(isa: str, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype)
    torch.testing.assert_close(
        run_unary(name, x), UNARY[name].torch(x), equal_nan=True, msg=lambda m: isa + m
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "at_minus_inf", "at_inf"),
    [
        ("gelu", NAN, INF),
        ("gelu_tanh", NAN, INF),
        ("silu", NAN, INF),
        ("sigmoid", 0.0, 1.0),
        ("tanh", -1.0, 1.0),
        ("relu", 0.0, INF),
        ("exp", 0.0, INF),
        ("sqrt", NAN, INF),
        ("rsqrt", NAN, 0.0),
    ],
)
def test_special_values(
    isa: str, name: str, dtype: torch.dtype, at_minus_inf: float, at_inf: float
) -> None:
    x = torch.tensor([NAN, -INF, INF], dtype=dtype).repeat(40)[:-1]
    expected = torch.tensor([NAN, at_minus_inf, at_inf], dtype=dtype).repeat(40)[:-1]
    torch.testing.assert_close(
        run_unary(name, x), expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: isa + m
    )
    zeros = torch.tensor([0.0, -0.0] * 20, dtype=dtype)
    y = run_unary(name, zeros)
    if name in {"gelu", "gelu_tanh", "silu", "tanh", "sqrt"}:
        assert torch.equal(y, zeros)
        assert torch.equal(y.signbit(), zeros.signbit())


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_16_bit_patterns_survive(isa: str, dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        pytest.skip("16-bit formats only")
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    out = torch.empty_like(x)
    core.kernel_binary_scalar(2, x, 1.0, out, 1.0, reverse=False)
    torch.testing.assert_close(out, x, rtol=0, atol=0, equal_nan=True, msg=lambda m: isa + m)
    number = ~x.isnan()
    assert torch.equal(out.view(torch.int16)[number], x.view(torch.int16)[number])


@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=70))
def test_rounding_to_16_bits_is_torch_s(bits: list[int]) -> None:
    """x * 1 in float32 rows, stored as 16 bits through a float32 weight of a norm-free path."""
    wide = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        low = wide.to(dtype)
        half = (wide - low.float()).nan_to_num(0, 0, 0).to(dtype)
        out = torch.empty_like(low)
        core.kernel_binary(0, low, half, out, 1.0)
        expected = (low.float() + half.float()).to(dtype)
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


GRADS: dict[str, tuple[int, Callable[[Tensor], Tensor], bool]] = {
    # Kernel, derivative as a function of what is saved.
    "gelu": (0, lambda x: ndtr(x) + x * bell(x), False),
    "gelu_tanh": (
        1,
        lambda x: (
            (s := torch.sigmoid(tanh_argument(x)))
            + x * s * (1 - s) * 2 * BETA * (1 + 3 * KAPPA * x * x)
        ),
        False,
    ),
    "silu": (2, lambda x: (s := torch.sigmoid(x)) * (1 + x * (1 - s)), False),
    "sigmoid": (3, lambda y: y * (1 - y), True),
    "tanh": (4, lambda y: 1 - y * y, True),
    "relu": (5, lambda y: (y > 0).double(), True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADS)
def test_gradients(isa: str, name: str, dtype: torch.dtype) -> None:
    number, derivative, of_result = GRADS[name]
    generator = torch.Generator().manual_seed(2)
    x = (torch.randn(40_001, generator=generator) * 4).to(dtype)
    saved = UNARY[name].torch(x) if of_result else x
    grad = torch.randn(40_001, generator=generator).to(dtype)
    out = torch.empty_like(x)
    core.kernel_unary_grad(number, grad, saved, out)
    exact = grad.double() * derivative(saved.double())
    # 1 - s and 1 - y cancel: the error is absolute, in steps of float32 near 1, times |x|.
    scale = grad.double().abs() * (1 + (0 if of_result else x.double().abs()))
    series = {torch.float32: 0.0, torch.bfloat16: 3e-4, torch.float16: 2e-5}[dtype]
    allowed = (10 * 2.0**-24 + series) * scale
    if dtype != torch.float32:
        allowed += 0.5 * spacing(exact, dtype)
    assert ((out.double() - exact).abs() <= allowed).all(), isa


def test_relu_gradient_at_nan_and_zero() -> None:
    saved = torch.tensor([NAN, 0.0, -0.0, 1.0])
    out = torch.empty(4)
    core.kernel_unary_grad(5, torch.ones(4), saved, out)
    assert torch.equal(out, torch.ops.aten.threshold_backward(torch.ones(4), saved, 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("number", "reference"), BINARY)
@pytest.mark.parametrize("n", [0, 1, 15, 16, 33, 100_003])
def test_binary_is_torch_s(
    number: int, reference: Callable[..., Tensor], dtype: torch.dtype, n: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(n, generator=generator).to(dtype)
    b = torch.randn(n, generator=generator).to(dtype)
    b[::9], a[::11], a[::13], b[::13] = 0, INF, NAN, -INF
    out = torch.empty_like(a)
    for alpha in (1.0, -0.5, 0.3) if number < 2 else (1.0,):
        core.kernel_binary(number, a, b, out, alpha)
        expected = reference(a, b, alpha=alpha) if number < 2 else reference(a, b)
        # torch's own vector body and scalar tail round a scaled addition differently.
        tolerance = 0.0 if alpha != 0.3 else 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("number", "reference"), BINARY)
@pytest.mark.parametrize("scalar", [0.3, -2.0, 0.0, INF, NAN])
def test_scalar_is_torch_s(
    number: int, reference: Callable[..., Tensor], dtype: torch.dtype, scalar: float
) -> None:
    a = torch.randn(1003, generator=torch.Generator().manual_seed(4)).to(dtype)
    out = torch.empty_like(a)
    core.kernel_binary_scalar(number, a, scalar, out, 1.0, reverse=False)
    expected = reference(a, scalar)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    if number == 1:
        core.kernel_binary_scalar(number, a, scalar, out, 1.0, reverse=True)
        expected = torch.rsub(a, scalar)
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("number", "reference"), BINARY)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (7, 33), (300, 257), (3, 40_000), (5, 0)])
def test_row_is_torch_s(
    number: int, reference: Callable[..., Tensor], dtype: torch.dtype, rows: int, cols: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(rows, cols, generator=generator).to(dtype)
    row = torch.randn(cols, generator=generator).to(dtype)
    out = torch.empty_like(a)
    core.kernel_binary_row(number, a, row, out, 1.0, reverse=False)
    torch.testing.assert_close(out, reference(a, row), rtol=0, atol=0)
    core.kernel_binary_row(number, a, row, out, 1.0, reverse=True)
    torch.testing.assert_close(out, reference(row, a), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_in_place_threads_and_bounds(isa: str, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(200_003, generator=torch.Generator().manual_seed(6)).to(dtype)
    x = x.abs() if name.endswith("sqrt") else x  # NaN is not equal to itself
    expected = run_unary(name, x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(run_unary(name, x), expected), isa
    finally:
        torch.set_num_threads(threads)
    for n in (0, 1, 17, 31, 32, 100):
        guarded = x[: n + 40].clone()
        core.kernel_unary(UNARY[name].number, guarded[:n], guarded[:n])
        assert torch.equal(guarded[:n], run_unary(name, x[:n].clone()))
        assert torch.equal(guarded[n:], x[n : n + 40])


def test_dtype_is_checked() -> None:
    x = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="\"unary\" not implemented for 'Double'"):
        core.kernel_unary(0, x, x)
