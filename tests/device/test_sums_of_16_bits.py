"""Gradients that add up what many results have read: sums of float32, each rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional


def _places(x: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long, device=x.device)


def _adaptive(x: Tensor, kind: str, dims: int) -> Tensor:
    size = (40, 30) if dims == 2 else (20, 15, 6)
    result: Tensor = getattr(functional, f"adaptive_{kind}_pool{dims}d")(x, size)
    return result


def _padded(x: Tensor, mode: str, dims: int) -> Tensor:
    return functional.pad(x, (11,) * 2 * dims, mode=mode)


def _sampled(x: Tensor, dims: int) -> Tensor:
    grid = x.new_full((1, *[9] * dims, dims), 0.25)
    return functional.grid_sample(x, grid, align_corners=False)


# Sizes, and a function in whose gradient up to a thousand terms fall on one place. Of equal ones, a
# sum in bfloat16 would stop at 256.
CASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    **{
        f"adaptive {kind} {d}d": ((2, 1, *[1] * (d - 1), 3), partial(_adaptive, kind=kind, dims=d))
        for kind in ("avg", "max")
        for d in (2, 3)
    },
    **{
        f"{mode} {d}d": ((2, 1, *[extent] * d), partial(_padded, mode=mode, dims=d))
        for mode, extent in (("reflect", 12), ("replicate", 3))
        for d in (1, 2, 3)
    },
    **{f"grid {d}d": ((1, 1, *[4] * d), partial(_sampled, dims=d)) for d in (2, 3)},
    "area": ((2, 1, 3, 3), lambda x: functional.interpolate(x, size=(60, 60), mode="area")),
    "embedding": ((4, 8), lambda x: functional.embedding(_places(x, 600), x)),
    "embedding bag": (
        (4, 8),
        lambda x: functional.embedding_bag(_places(x, 600).view(2, -1), x, mode="sum"),
    ),
}


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    result = function(x)
    generator = torch.Generator().manual_seed(1)
    outer = torch.rand(result.shape, generator=generator) + 0.5
    return torch.autograd.grad(result, x, outer.bfloat16().to(x))[0]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_sums(name: str, dtype: torch.dtype, *, compiled: bool) -> None:
    size, function = CASES[name]
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = gradient(function, x.double())
    torch.compiler.reset()
    run = torch.compile(function, backend="neuron") if compiled else function
    found = gradient(run, x.to("neuron")).cpu()
    assert found.dtype == dtype
    # A term may be a quotient or product that is rounded itself, before float32 adds it.
    limit = 2 * torch.finfo(dtype).eps / 2 * exact.abs().max()
    assert (found.double() - exact).abs().max() <= limit


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    size=st.lists(st.integers(0, 5), max_size=3),
    padding=st.integers(-1, 41),
    by_frequency=st.booleans(),
    kinds=st.tuples(
        st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
        st.sampled_from([torch.int64, torch.int32]),
    ),
    seed=st.integers(0, 9),
)
@example(
    rows=2, size=[5], padding=0, by_frequency=False, kinds=(torch.bfloat16, torch.int64), seed=0
)
@example(
    rows=3, size=[0, 2], padding=1, by_frequency=True, kinds=(torch.float16, torch.int32), seed=0
)
def test_tables(
    rows: int,
    size: list[int],
    padding: int,
    *,
    by_frequency: bool,
    kinds: tuple[torch.dtype, torch.dtype],
    seed: int,
) -> None:
    dtype, named = kinds
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(rows, size, generator=generator).to(named)
    grad = torch.randn((*size, 3), generator=generator).to(dtype)

    def call(device: str, given: torch.dtype) -> Tensor:
        result: Tensor = torch.ops.aten.embedding_dense_backward(
            grad.to(device, given), indices.to(device), rows, padding, by_frequency
        )
        return result

    found, exact = call("neuron", dtype).cpu(), call("cpu", torch.float64)
    assert found.dtype == dtype
    limit = torch.finfo(dtype).eps / 2 * exact.abs() + 2.0**-18
    assert bool(((found.double() - exact).abs() <= limit).all())
