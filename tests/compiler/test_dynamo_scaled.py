"""Compiled products of 8-bit floats with scales of every form: those of eager mode, bit for bit.

Eager mode itself is compared with float32 in tests/device/test_scaled_products.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

from .dynamo_tools import host_operators, watched

Tensor = torch.Tensor
S, SWIZZLE = ScalingType, SwizzleType.SWIZZLE_32_4_4
FLOAT8, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
M, N, K, GROUPS = 128, 256, 256, 2
# PyTorch's stubs have not caught up with them.
scaled_mm: Any = functional.scaled_mm
scaled_grouped_mm: Any = vars(functional)["scaled_grouped_mm"]


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(FLOAT8).to("neuron")


def scales(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    return made.to(dtype).to("neuron")


def offsets(*ends: int) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32, device="neuron")


def by_recipe(recipe_a: Any, recipe_b: Any, swizzle: Any = None) -> Callable[..., Tensor]:
    def call(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        product: Tensor = scaled_mm(x, y.t(), a, recipe_a, b, recipe_b, swizzle, swizzle)
        return product * 2

    return call


def groups_by_recipe(recipe: Any, swizzle: Any = None) -> Callable[..., Tensor]:
    def call(x: Tensor, y: Tensor, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        y = y.transpose(-2, -1)
        product: Tensor = scaled_grouped_mm(x, y, a, recipe, b, recipe, swizzle, swizzle, offs=ends)
        return product * 2

    return call


def older(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch._scaled_mm(x, y.t(), a, b, out_dtype=torch.bfloat16) * 2


def older_groups(x: Tensor, y: Tensor, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torch._scaled_grouped_mm(x, y.transpose(-2, -1), a, b, offs=ends) * 2


def left() -> Tensor:
    return values(M, K)


def right() -> Tensor:
    return values(N, K)


def stack() -> Tensor:
    return values(GROUPS, N, K)


V1, V2 = "aten::_scaled_mm", "aten::_scaled_mm_v2"
GROUPED, GROUPED_V2 = "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"
BLOCKS = K // 128
#: Form -> the function, its tensors, the operator that is a step on the host.
FORMS: dict[str, tuple[Callable[..., Tensor], Callable[[], list[Tensor]], str]] = {
    "1x128 by 128x128": (
        older, lambda: [left(), right(), scales(M, BLOCKS), scales(BLOCKS, N // 128)], V1,
    ),
    "mxfp8": (older, lambda: [left(), right(), *mx(M), *mx(N)], V1),
    "tensorwise, v2": (
        by_recipe(S.TensorWise, S.TensorWise), lambda: [left(), right(), scales(1), scales(1)], V2,
    ),
    "1x128, v2": (
        by_recipe(S.BlockWise1x128, S.BlockWise1x128),
        lambda: [left(), right(), scales(M, BLOCKS), scales(N, BLOCKS)], V2,
    ),
    "mxfp8, v2": (
        by_recipe(S.BlockWise1x32, S.BlockWise1x32, SWIZZLE),
        lambda: [left(), right(), *mx(M), *mx(N)], V2,
    ),
    "groups, mxfp8": (
        older_groups,
        lambda: [left(), stack(), mx(M)[0].view(M, -1), mx(N, GROUPS)[0], offsets(0, M)], GROUPED,
    ),
    "groups, rowwise, v2": (
        groups_by_recipe(S.RowWise),
        lambda: [left(), stack(), scales(M), scales(GROUPS, N), offsets(48, M)], GROUPED_V2,
    ),
    "groups, mxfp8, v2": (
        groups_by_recipe(S.BlockWise1x32, SWIZZLE),
        lambda: [left(), stack(), mx(M)[0], mx(N, GROUPS)[0], offsets(0, M)], GROUPED_V2,
    ),
}  # fmt: skip


def mx(rows: int, *groups: int) -> list[Tensor]:
    return [scales(*groups, rows * (K // 32), dtype=E8M0)]


@pytest.mark.parametrize("form", FORMS)
def test_scaled_products(form: str) -> None:
    function, make, operator = FORMS[form]
    arguments = make()
    torch.compiler.reset()
    compiled: Any = torch.compile(function, backend="neuron", fullgraph=True)
    with watched() as graphs:
        got = compiled(*arguments)
    assert [name.partition(".")[0] for name in host_operators(graphs)] == [operator]
    expected = function(*arguments)
    assert got.device == expected.device
    assert torch.equal(got, expected)
