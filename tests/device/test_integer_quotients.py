"""Quotients and remainders of integers, where the processor's instruction traps: least over -1.

PyTorch's CPU kernel for a truncated quotient ends the process there, so what is right is worked out
by Python's integers, which wrap around as the type does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

SIGNED: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
Function = Callable[[Tensor, Tensor], Tensor]


def _out(x: Tensor, y: Tensor) -> Tensor:
    result = torch.empty(len(x), dtype=torch.result_type(x, y), device=x.device)
    return torch.div(x, y, rounding_mode="trunc", out=result)


def _truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


#: Functions of two tensors of integers, and what they mean for two numbers.
MEANINGS: Final[dict[str, tuple[Function, Callable[[int, int], int]]]] = {
    "trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), _truncated),
    "trunc out": (_out, _truncated),
    "trunc by a number": (lambda x, _: torch.div(x, -1, rounding_mode="trunc"), lambda x, _: -x),
    "floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), lambda x, y: x // y),
    "floor by a number": (lambda x, _: x // -1, lambda x, _: -x),
    "remainder": (torch.remainder, lambda x, y: x % y),
    "fmod": (torch.fmod, lambda x, y: x - _truncated(x, y) * y),
}


def wrapped(value: int, dtype: torch.dtype) -> int:
    bits = torch.iinfo(dtype).bits
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def pairs(left: torch.dtype, right: torch.dtype) -> tuple[Tensor, Tensor]:
    least = torch.iinfo(left).min
    x, y = zip(*((a, b) for a in (least, least + 1, -7, 0, 7) for b in (-1, 2, -3)), strict=True)
    return torch.tensor(x, dtype=left), torch.tensor(y, dtype=right)


@pytest.mark.parametrize("right", SIGNED)
@pytest.mark.parametrize("left", SIGNED)
def test_eager(left: torch.dtype, right: torch.dtype) -> None:
    x, y = pairs(left, right)
    for name, (function, meaning) in MEANINGS.items():
        got = function(x.to("neuron"), y.to("neuron"))
        assert got.dtype == (left if name.endswith("number") else torch.result_type(x, y))
        expected = [
            wrapped(meaning(a, b), got.dtype) for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        assert got.tolist() == expected, name


@pytest.mark.parametrize("dtype", SIGNED)
def test_in_place_and_broadcast(dtype: torch.dtype) -> None:
    x, _ = pairs(dtype, dtype)
    expected = [wrapped(-value, dtype) for value in x.tolist()]
    for minus in (torch.tensor(-1, dtype=dtype), torch.tensor([-1]), torch.tensor(-1.0).long()):
        got = x.to("neuron")
        assert got.div_(minus.to("neuron"), rounding_mode="trunc") is got
        assert got.tolist() == expected
    table = torch.div(
        x.to("neuron")[:, None],
        torch.tensor([-1, 1], dtype=dtype, device="neuron"),
        rounding_mode="trunc",
    )
    assert table.tolist() == [list(row) for row in zip(expected, x.tolist(), strict=True)]


@pytest.mark.parametrize("dims", [2, 3])
def test_averages(dims: int) -> None:
    least = torch.iinfo(torch.int64).min
    pool = getattr(torch.nn.functional, f"avg_pool{dims}d")
    backward = getattr(torch.ops.aten, f"avg_pool{dims}d_backward")
    x = torch.full((1, 1, *[2] * dims), least >> dims, device="neuron")
    grad = torch.full((1, 1, *[1] * dims), least, device="neuron")
    windows = ([2] * dims, [2] * dims, [0] * dims, False, True)
    for divisor, expected in ((-1, least), (1, least), (-2, -(least // 2))):
        assert pool(x, 2, divisor_override=divisor).flatten().tolist() == [expected]
        got = backward(grad, x, *windows, divisor)
        assert set(got.flatten().tolist()) == {expected}
        compiled: Any = torch.compile(pool, backend="neuron")
        found = compiled(x, 2, divisor_override=divisor)
        assert found.flatten().tolist() == [expected]


def test_what_is_refused_is_refused() -> None:
    x = torch.tensor([-128, 3], dtype=torch.int8, device="neuron")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.div(x, torch.tensor([-1, 0], device="neuron"), rounding_mode="trunc")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.div_(torch.full((3, 2), -1, device="neuron"), rounding_mode="trunc")
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.div(x, torch.full((3,), -1, device="neuron"), rounding_mode="trunc")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_compiled(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [f(x, y) for f, _ in MEANINGS.values()]

    torch.compiler.reset()
    x, y = (t.to("neuron") for t in pairs(dtype, dtype))
    for got, expected in zip(
        torch.compile(function, backend="neuron")(x, y), function(x, y), strict=True
    ):
        assert torch.equal(got, expected)
