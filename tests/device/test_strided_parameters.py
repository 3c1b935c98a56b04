"""Norms whose weights and running statistics are strided: as with contiguous ones on the CPU.

Some of PyTorch's CPU kernels overlook such strides; what is only read is copied for them, and what
is written must reach the caller's memory. The CPU itself is compared with contiguous ones, because
its gradients of channels-last inputs are wrong with others.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

ops = torch.ops.aten
BATCH_NORMS: dict[str, Callable[..., Any]] = {
    "batch_norm": lambda x, w, b, m, v, t: functional.batch_norm(x, m, v, w, b, t),
    "instance_norm": lambda x, w, b, m, v, t: functional.instance_norm(
        x, m, v, w, b, use_input_stats=t
    ),
    "native": lambda x, w, b, m, v, t: torch.native_batch_norm(x, w, b, m, v, t, 0.1, 1e-5)[0],
    "legit": lambda x, w, b, m, v, t: ops._native_batch_norm_legit(
        x, w, b, m, v, t, 0.1, 1e-5
    )[0],
    "with_update": lambda x, w, b, m, v, _: ops._batch_norm_with_update(
        x, w, b, m, v, 0.1, 1e-5
    )[0],
    "update_stats": lambda x, _w, _b, m, v, _t: torch.stack(
        ops.batch_norm_update_stats(x.detach(), m, v, 0.1)
    ),
}  # fmt: skip
SHAPES = ((5, 6), (3, 6, 5), (3, 6, 4, 5), (2, 6, 3, 2, 4))
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def spread(values: torch.Tensor, step: int, device: str) -> torch.Tensor:
    """The same values, with others between them that nothing may read or write."""
    memory = torch.full((len(values) * step,), 99.0, dtype=values.dtype)
    memory[::step] = values
    return memory.to(device)[::step]


def outcome(
    norm: Callable[..., Any],
    shape: tuple[int, ...],
    step: int,
    device: str,
    *,
    training: bool,
    last: bool,
) -> list[torch.Tensor]:
    """The result, the running statistics after it, and all gradients."""
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape, generator=generator)
    if last:
        x = x.contiguous(memory_format=FORMATS[len(shape)])
    x = x.to(device).requires_grad_()
    weight, bias, mean, variance = (
        spread(torch.rand(shape[1], generator=generator) + 0.5, step, device) for _ in range(4)
    )
    weight.requires_grad_()
    bias.requires_grad_()
    result = norm(x, weight, bias, mean, variance, training)
    kept = [result, mean, variance]
    if result.requires_grad:
        result.square().sum().backward()
        kept += [t.grad for t in (x, weight, bias) if t.grad is not None]
    if device != "cpu":
        for t in (weight, bias, mean, variance):
            between = t.detach().as_strided((len(t), step - 1), (step, 1), t.storage_offset() + 1)
            assert torch.all(between == 99.0)
    return [t.detach().cpu() for t in kept]


@pytest.mark.parametrize("name", BATCH_NORMS)
@pytest.mark.parametrize("step", [2, 3])
def test_batch_norms(name: str, step: int) -> None:
    for shape, training, last in itertools.product(SHAPES, (True, False), (False, True)):
        if (last and len(shape) not in FORMATS) or (name == "instance_norm" and len(shape) == 2):
            continue
        options = {"training": training, "last": last}
        expected = outcome(BATCH_NORMS[name], shape, 1, "cpu", **options)
        got = outcome(BATCH_NORMS[name], shape, step, "neuron", **options)
        where = f"{shape}, {options}"  # for the message
        torch.testing.assert_close({where: got}, {where: expected})


@pytest.mark.parametrize("hermitian", [False, True])
def test_ldl_solve_looks_at_pairs_of_pivots(hermitian: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 6, 6, generator=generator)
    factors, pivots = torch.linalg.ldl_factor(a + a.mT)
    assert (pivots < 0).any()  # blocks of two rows are among them
    b = torch.randn(5, 6, 2, generator=generator)
    expected = torch.linalg.ldl_solve(factors, pivots, b, hermitian=hermitian)

    def solve(pivots: torch.Tensor) -> torch.Tensor:
        solved: torch.Tensor = torch.linalg.ldl_solve(
            factors.to("neuron"), pivots.to("neuron"), b.to("neuron"), hermitian=hermitian
        )
        torch.accelerator.synchronize()
        return solved

    torch.testing.assert_close(solve(pivots).cpu(), expected)
    for alone in itertools.product((1, -1), repeat=6):
        wrong = pivots.clone()
        wrong[3] = torch.tensor(alone, dtype=torch.int32)
        runs = [len(list(run)) for negative, run in itertools.groupby(alone) if negative < 0]
        if all(length % 2 == 0 for length in runs):
            solve(wrong)
            continue
        with pytest.raises(RuntimeError, match="linalg_ldl_solve: negative pivots come in pairs"):
            solve(wrong)
