"""Pointwise operators at zeros of both signs, infinities, NaN and large numbers, against the CPU.

Also reductions of numbers whose sums overflow. Functions may be off by some units in the last
place, but an infinity, a NaN and the sign of a zero are what they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody names it

Function = Callable[..., torch.Tensor]

VALUES = [
    *(0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, math.inf, -math.inf, math.nan),
    *(3.0, -3.0, 7.0, -6.0, 1e-3, -1e-3, 60.0, -60.0, 3e4, -3e4),
]
UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "cos",
        "cosh",
        "deg2rad",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "frac",
        "isfinite",
        "isinf",
        "isnan",
        "log",
        "log10",
        "log1p",
        "log2",
        "logit",
        "neg",
        "reciprocal",
        "relu",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "signbit",
        "sin",
        "sinc",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "trunc",
    ]
} | {
    name: getattr(F, name)
    for name in [
        "celu",
        "elu",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "logsigmoid",
        "relu6",
        "selu",
        "softplus",
        "softsign",
    ]
}
EXPONENTS = (0.5, -0.5, 0, 1, 2, 3, -1, -2, 1.5, 1 / 3, math.inf, -math.inf, math.nan, 1e-40)
POWERS: dict[str, Function] = {f"x ** {p}": lambda x, p=p: x**p for p in EXPONENTS}
BOUNDS: dict[str, Function] = {
    f"clamp({low}, {high})": lambda x, low=low, high=high: x.clamp(low, high)
    for low, high in [(0.0, None), (-0.0, None), (None, 0.0), (-0.0, 0.0), (2.0, -2.0)]
} | {"clamp(nan)": lambda x: x.clamp(math.nan, 1.0)}
BINARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "atan2",
        "copysign",
        "eq",
        "floor_divide",
        "ge",
        "heaviside",
        "hypot",
        "logaddexp",
        "lt",
        "nextafter",
        "pow",
        "xlogy",
    ]
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def results(table: dict[str, Function], *args: torch.Tensor) -> tuple[dict[str, torch.Tensor], ...]:
    """What all functions give, compiled (in one program) and on the CPU."""

    def every(*args: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(*args) for name, function in table.items()}

    torch.compiler.reset()
    compiled = torch.compile(every, backend="neuron", fullgraph=True)
    return compiled(*(x.to("neuron") for x in args)), every(*args)


def agree(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert that two results are the same but for rounding."""
    got = got.cpu()
    assert got.dtype == want.dtype
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want), name
        return
    # 16 units in the last place; where the CPU's own functions are coarse, its denormals are 0.
    info = torch.finfo(want.dtype)
    assert torch.equal(got.isnan(), want.isnan()), f"{name}: {got} not {want}"
    bound = 16 * info.eps
    torch.testing.assert_close(
        got, want, rtol=bound, atol=bound * 1e-3 + info.tiny, equal_nan=True, msg=name
    )
    zero = (got == 0) & (want == 0)
    signs = torch.signbit(got) == torch.signbit(want)
    assert (signs | ~zero).all(), f"{name}: {got} not {want}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("table", [UNARY, POWERS, BOUNDS], ids=["unary", "powers", "bounds"])
def test_one_operand(table: dict[str, Function], dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES, dtype=dtype)
    got, want = results(table, x)
    for name in table:
        agree(name, got[name], want[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_operands(dtype: torch.dtype) -> None:
    values = torch.tensor(VALUES, dtype=dtype)
    x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(values, values, indexing="ij"))
    got, want = results(BINARY, x, y)
    for name in BINARY:
        agree(name, got[name], want[name])


SPREADS: dict[str, Function] = {
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1, correction=0),
    "var of columns": lambda x: x.var(0),
    "var_mean": lambda x: torch.cat(torch.var_mean(x, -1)),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "largest": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1),
}


@pytest.mark.parametrize("length", [1, 3, 8, 17, 100])
@pytest.mark.parametrize("value", [3e38, -3e38, 1e30, 1.1, 1e-30])
def test_rows_of_equal_numbers(value: float, length: int) -> None:
    table = {k: v for k, v in SPREADS.items() if length > 1 or k not in ("var", "var_mean")}
    x = torch.full((4, length), value)
    got, want = results(table, x)
    for name in table:
        # Equal numbers have no variance, which the CPU finds in most cases.
        if "var" in name or name == "std":
            expected = torch.zeros_like(want[name])
            if name == "var_mean":
                expected[4:] = value
            torch.testing.assert_close(got[name].cpu(), expected, rtol=1e-6, atol=0)
        else:
            agree(name, got[name], want[name])


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30, 1.1])
@pytest.mark.parametrize("groups", [1, 2])
def test_group_norm_of_equal_numbers(groups: int, value: float) -> None:
    x = torch.full((2, 4, 17), value)
    weight, bias = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, -1.0, 5.0])
    compiled = torch.compile(F.group_norm, backend="neuron", fullgraph=True)
    torch.compiler.reset()
    got = compiled(x.to("neuron"), groups, weight.to("neuron"), bias.to("neuron"))
    assert torch.equal(got.cpu(), bias.reshape(4, 1).expand(2, 4, 17))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_comparisons_with_numbers_that_the_type_does_not_have(dtype: torch.dtype) -> None:
    """They wrap around, as they do in eager mode and on the CPU."""
    info = torch.iinfo(dtype)
    numbers = (-1, info.max + 1, 2 * info.max + 1, info.min - 1, info.max + 45, 1 << 40)
    x = torch.tensor([info.min, info.max, 0, 1, 44, info.max // 2])
    table: dict[str, Function] = {
        f"{name} {number}": lambda x, of=of, number=number: of(x, number)
        for name, of in vars(operator).items()
        if name in ("eq", "ne", "lt", "le", "gt", "ge")
        for number in numbers
    }
    got, want = results(table, x.to(dtype))
    for name, function in table.items():
        assert torch.equal(got[name].cpu(), want[name]), name
        assert torch.equal(function(x.to(dtype).to("neuron")).cpu(), want[name]), name
