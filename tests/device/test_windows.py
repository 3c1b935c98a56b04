"""Functions of windows, steps and edges, eager and compiled, against the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.device.windows import FAMILIES, Case
from torch_neuronx.compat.release import minor

# Parts of the largest number: 16-bit kernels may round a handful of terms; in float32 there are
# sums of up to 125 terms, and places among up to 14, whose rounding goes into weights.
TOLERANCE = {torch.float32: 128 * 2.0**-23, torch.bfloat16: 4 * 2.0**-7}


def values(
    case: Case, run: Callable[..., Any], device: str, dtype: torch.dtype, held: torch.dtype
) -> list[Tensor]:
    """The results and their gradients, on the CPU.

    Args:
        case: Whose operands are taken, in `held` first.
        run: Its function, or that compiled.
        device: Where to compute.
        dtype: What to compute in.
        held: The type whose values all sides compute with.
    """
    operands = [t.to(held).to(dtype).to(device).detach().requires_grad_() for t in case.operands]
    results = run(*operands)
    results = list(results) if isinstance(results, tuple) else [results]
    of = [t for t in results if t.is_floating_point()]
    generator = torch.Generator().manual_seed(7)
    given = [torch.randn(t.shape, generator=generator).to(held) for t in of]
    grads = torch.autograd.grad(of, operands, [g.to(dtype).to(device) for g in given])
    return [t.detach().cpu() for t in (*results, *grads)]


def attempt(*args: Any) -> list[Tensor] | Exception:
    """The values, or the error if the call is refused."""
    try:
        return values(*args)
    except (RuntimeError, ValueError, IndexError) as error:
        return error


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        (family, dtype)
        for family in FAMILIES
        for dtype in TOLERANCE
        # In 16 bits each step of a place's computation is rounded, which may move it to the next.
        if (family, dtype) != ("grid_sample", torch.bfloat16)
    ],
    ids=str,
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_like_the_cpu(family: str, dtype: torch.dtype, data: st.DataObject) -> None:
    case = data.draw(FAMILIES[family])
    compiled = data.draw(st.sampled_from([False, False, False, False, True]))
    torch.compiler.reset()
    run = torch.compile(case.run, backend="neuron") if compiled else case.run
    taken = attempt(case, case.run, "cpu", dtype, dtype)
    found = attempt(case, run, "neuron", dtype, dtype)
    if isinstance(taken, Exception) or isinstance(found, Exception):
        assert isinstance(taken, Exception), found
        assert isinstance(found, Exception), taken
        return
    exact = taken if case.rounds_places else values(case, case.run, "cpu", torch.float64, dtype)
    for mine, other in zip(found, exact, strict=True):
        assert mine.shape == other.shape
        if not mine.is_floating_point():
            torch.testing.assert_close(mine, other)
            continue
        limit = TOLERANCE[dtype] * max(1.0, other.abs().max().item() if other.numel() else 0.0)
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=limit)


X, GRID = torch.linspace(-1, 1, 36), torch.linspace(-1.2, 1.2, 36)
#: Samplers of grids by their numbers of modes, and what they are called with in front of these.
SAMPLERS: dict[str, tuple[Callable[..., Any], int, list[Tensor]]] = {
    "grid_sampler": (torch.grid_sampler, 3, [X.view(1, 1, 6, 6), GRID.view(1, 6, 3, 2)]),
    "grid_sampler_2d": (torch.grid_sampler_2d, 3, [X.view(1, 1, 6, 6), GRID.view(1, 6, 3, 2)]),
    "grid_sampler_3d": (
        torch.grid_sampler_3d, 2, [X.view(1, 1, 2, 3, 6), GRID.view(1, 2, 2, 3, 3)],
    ),
    "grid_sampler_2d_backward": (
        lambda *args: torch.ops.aten.grid_sampler_2d_backward(*args, [True, True]),
        3, [X.view(1, 1, 6, 6)[..., :3], X.view(1, 1, 6, 6), GRID.view(1, 6, 3, 2)],
    ),
    "grid_sampler_3d_backward": (
        lambda *args: torch.ops.aten.grid_sampler_3d_backward(*args, [True, True]),
        2, [X[:12].view(1, 1, 2, 2, 3), X.view(1, 1, 2, 3, 6), GRID.view(1, 2, 2, 3, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_modes_that_there_are_not(name: str, *, compiled: bool) -> None:
    """PyTorch's kernels write nothing for them; its traces refuse them in words of their own."""
    function, modes, operands = SAMPLERS[name]
    if "3d" in name and not compiled and minor(torch.__version__) not in ("2.13", "2.14"):
        modes = 3  # bicubic is new in PyTorch 2.15, whose check of a trace knows cpu and cuda alone
    given = [t.to("neuron") for t in operands]

    def call(mode: int, padding: int) -> Any:
        torch.compiler.reset()
        run = torch.compile(function, backend="neuron") if compiled else function
        return run(*given, mode, padding, True)  # noqa: FBT003 - a positional argument

    for mode, padding in ((modes, 0), (-1, 0), (99, 1)):
        with pytest.raises(RuntimeError, match="interpolation"):
            call(mode, padding)
    for mode, padding in ((0, 3), (1, -1)):
        with pytest.raises(RuntimeError, match="padding"):
            call(mode, padding)
    expected = function(*operands, modes - 1, 2, True)  # noqa: FBT003
    got = call(modes - 1, 2)
    if isinstance(got, Tensor):
        expected, got = [expected], [got]
    for mine, other in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), other)
