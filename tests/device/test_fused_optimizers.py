"""Fused optimizer steps against the plain ones: every dtype, layout and size, eager and compiled.

PyTorch's CPU kernels, which run most of them, take a parameter and its states for runs of elements
in the same order, and that of SGD is wrong in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

STEPS = 3
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}),
    "Adam, amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW, maximize": (torch.optim.AdamW, {"maximize": True}),
    "Adagrad": (torch.optim.Adagrad, {"weight_decay": 0.1}),
    "SGD": (torch.optim.SGD, {"weight_decay": 0.1}),
    "SGD, momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "SGD, nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda t: t.clone(),
    "columns": lambda t: t.t().clone(memory_format=torch.contiguous_format).t(),
    "every other": lambda t: torch.stack([t, t + 1], -1)[..., 0],
    "behind others": lambda t: torch.cat([t, t], -1)[..., t.shape[-1] :],
}


def on_device(t: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `t` in a layout, on the device."""
    found = LAYOUTS[layout](t)
    base = found.untyped_storage()
    device = torch.empty(len(base), dtype=torch.uint8, device="neuron")
    device.copy_(torch.tensor([], dtype=torch.uint8).set_(base))
    return torch.empty(0, dtype=t.dtype, device="neuron").set_(
        device.untyped_storage(), found.storage_offset(), found.shape, found.stride()
    )


def steps(
    name: str, start: torch.Tensor, grads: list[torch.Tensor], scale: float | None
) -> list[torch.Tensor]:
    """The parameter and its states after all steps, which are fused on the device."""
    kind, options = OPTIMIZERS[name]
    fused = start.device.type == "neuron"
    param = torch.nn.Parameter(start)
    how = {"fused": True} if fused else {"foreach": False}
    optimizer = kind([param], lr=0.1, **how, **options)
    if fused and scale is not None:
        setattr(optimizer, "grad_scale", torch.tensor(scale, device="neuron"))  # noqa: B010 - as GradScaler does
        setattr(optimizer, "found_inf", torch.tensor(0.0, device="neuron"))  # noqa: B010
    for grad in grads:
        param.grad = grad if scale is None or fused else grad / scale
        optimizer.step()
    found = [param.detach(), *optimizer.state[param].values()]
    return [t.cpu().double() for t in found if isinstance(t, torch.Tensor)]


def compare(
    name: str, dtype: torch.dtype, fused: list[torch.Tensor], plain: list[torch.Tensor]
) -> None:
    """Each step may round every stored value, and a state's error reaches the parameter."""
    assert len(fused) == len(plain), name
    for a, b in zip(fused, plain, strict=True):
        eps = torch.finfo(dtype).eps
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(
            a, b, rtol=0, atol=8 * STEPS * eps * scale, msg=lambda m: f"{name}: {m}"
        )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    shape=st.tuples(st.integers(0, 9), st.integers(1, 40)),
    scale=st.sampled_from([None, 4.0]),
    seed=st.integers(0, 99),
)
def test_eager(
    name: str,
    dtype: torch.dtype,
    layouts: tuple[str, str],
    shape: tuple[int, int],
    scale: float | None,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    start = torch.randn(shape, generator=g).to(dtype)
    grads = [torch.randn(shape, generator=g).to(dtype) for _ in range(STEPS)]

    # Adam and Adagrad divide a gradient by its own size. Where it is next to nothing, or cancels
    # with the decay, rounding decides the sign, and float16 has few digits for a small square.
    def well(grad: torch.Tensor) -> torch.Tensor:
        sizes = [
            (grad.double() / (scale or 1) + decay * start.double()).abs() for decay in (0, 0.1)
        ]
        return torch.where(torch.minimum(*sizes) < 0.1, grad + 4, grad)

    grads = [well(grad) for grad in grads]
    plain = steps(name, start.double(), [x.double() for x in grads], scale)
    fused = steps(
        name, on_device(start, layouts[0]), [on_device(x, layouts[1]) for x in grads], scale
    )
    compare(name, dtype, fused, plain)


SCALES = {"scaled": 4.0, "not scaled": None}


def lists(n: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[list[torch.Tensor]]:
    """`n` lists of two tensors with values of their own; all are positive, as squares are."""
    g = torch.Generator().manual_seed(n)
    return [
        [torch.rand(shape, generator=g).add(0.5).to("neuron", dtype) for _ in range(2)]
        for _ in range(n)
    ]


@pytest.mark.every(5)
@pytest.mark.parametrize("bad", [None, 0.0, 1.0])
@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_compiled(name: str, dtype: torch.dtype, flag: bool, scale: str, bad: float | None) -> None:
    """The functional operator in a graph against the one in place in eager mode.

    A graph breaks before a fused optimizer, so only functions that call an operator have it.
    """
    torch.compiler.reset()
    tensors = lists(3 if name == "sgd" else 5, (3, 37), dtype)
    rest: list[Any] = []
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1 if flag else 0.0, "maximize": flag}
    for key, number in (("grad_scale", SCALES[scale]), ("found_inf", bad)):
        if number is not None:
            options[key] = torch.tensor(number, device="neuron")
    if name == "sgd":
        options.update(momentum=0.9, dampening=0.25, nesterov=flag, is_first_step=False)
    else:
        options.update(beta1=0.9, beta2=0.99, eps=1e-6, amsgrad=flag)
        rest = [[torch.tensor(3.0, device="neuron") for _ in range(2)]]
        if not flag:
            tensors[4] = []
    started = [[t.clone() for t in part] for part in tensors]

    functional = getattr(torch.ops.aten, f"_fused_{name}")
    compiled: Any = torch.compile(functional, backend="neuron", fullgraph=True)
    found = compiled(*tensors, *rest, **options)
    for part, start in zip(tensors, started, strict=True):
        assert all(map(torch.equal, part, start))
    getattr(torch.ops.aten, f"_fused_{name}_")(*tensors, *rest, **options)
    tolerance = 4 * torch.finfo(dtype).eps
    for i, (ours, theirs, start) in enumerate(zip(found, tensors, started, strict=True)):
        assert len(ours) == len(theirs)
        for a, b, old in zip(ours, theirs, start, strict=True):
            text = partial("list {}: {}".format, i)
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=text)
            assert not bad or torch.equal(a, old)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_gradient_that_repeats_one_element(name: str) -> None:
    """A kernel that goes through its memory would read behind it."""
    start = torch.randn(6, 33)
    plain = steps(name, start.double(), [torch.ones(6, 33).double()] * STEPS, None)
    grads = [torch.ones((), device="neuron").expand(6, 33)] * STEPS
    compare(name, torch.float32, steps(name, start.to("neuron"), grads, None), plain)


def test_functional_form_in_16_bits() -> None:
    options = {"weight_decay": 0.0, "momentum": 0.5, "lr": 0.25, "dampening": 0.0}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    ones = torch.ones(40, dtype=torch.bfloat16, device="neuron")
    step = torch.ops.aten._fused_sgd
    params, _, momenta = step([ones], [2 * ones], [4 * ones], **options, **flags)
    torch.testing.assert_close(momenta[0], 4 * ones)  # 0.5 * 4 + 2
    torch.testing.assert_close(params[0], 0 * ones)  # 1 - 0.25 * 4
