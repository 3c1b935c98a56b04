"""Autocast and gradient scaling."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_neuronx import neuron

DEVICE = torch.device("neuron")


def test_supported_types() -> None:
    assert {torch.float16, torch.bfloat16} <= set(neuron.get_amp_supported_dtype())
    assert torch.amp.is_autocast_available("neuron")
    assert not torch.is_autocast_enabled("neuron")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_run_in_the_lower_type(dtype: torch.dtype) -> None:
    x, w = torch.randn(4, 8, device=DEVICE), torch.randn(8, 8, device=DEVICE)
    with torch.autocast("neuron", dtype):
        assert torch.is_autocast_enabled("neuron")
        assert torch.get_autocast_dtype("neuron") == dtype
        results = [
            x @ w,
            torch.addmm(x, x, w),
            functional.linear(x, w),
            torch.bmm(x[None], w[None]),
            functional.conv1d(x[None], w[:, :4, None].contiguous()),
            functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        ]
    assert {r.dtype for r in results} == {dtype}
    expected = x.to(dtype).cpu().float() @ w.to(dtype).cpu().float()
    torch.testing.assert_close(results[0].cpu().float(), expected, rtol=2**-7, atol=2**-5)


def test_sensitive_operators_run_in_float32() -> None:
    x = torch.randn(4, 8, device=DEVICE, dtype=torch.bfloat16)
    with torch.autocast("neuron", torch.bfloat16):
        results = [
            functional.cross_entropy(x, torch.arange(4, device=DEVICE)),
            functional.mse_loss(x, x),
            torch.linalg.vector_norm(x.float()),
            functional.layer_norm(x.float(), (8,)),
        ]
    assert {r.dtype for r in results} == {torch.float32}


def test_mixed_types_are_widened() -> None:
    half, full = torch.ones(3, device=DEVICE, dtype=torch.bfloat16), torch.ones(3, device=DEVICE)
    with torch.autocast("neuron", torch.bfloat16):
        assert torch.cat([half, full]).dtype == torch.float32
        assert torch.stack([half, full]).dtype == torch.float32


def test_nesting_and_leaving() -> None:
    x = torch.randn(4, 4, device=DEVICE)
    with torch.autocast("neuron", torch.bfloat16):
        with torch.autocast("neuron", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("neuron", torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_autocast_of_another_device_does_nothing_here() -> None:
    x = torch.randn(4, 4, device=DEVICE)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype == torch.float32


def test_unsupported_type_warns_and_turns_it_off() -> None:
    x = torch.randn(4, 4, device=DEVICE)
    with pytest.warns(UserWarning, match="neuron.*not supported"):
        context = torch.autocast("neuron", torch.float64)
    with context:
        assert (x @ x).dtype == torch.float32


def test_decorator_and_custom_functions() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="neuron")
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="neuron")
        def backward(
            ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
        ) -> torch.Tensor:
            (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
            gradient: torch.Tensor = gradients[0] @ x.mT + x.mT @ gradients[0]
            return gradient

    @torch.autocast("neuron", torch.bfloat16)
    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Product.apply(x)  # type: ignore[no-untyped-call]
        return result

    x = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    y = product(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_weights_keep_float32_gradients() -> None:
    model = nn.Linear(8, 8).to(DEVICE)
    with torch.autocast("neuron", torch.bfloat16):
        loss = model(torch.randn(2, 8, device=DEVICE)).float().square().mean()
    loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32


def test_scaler_scales_unscales_and_steps() -> None:
    weight = nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("neuron", init_scale=1024.0)
    scaler.scale((weight * 0.25).sum()).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [256.0] * 3
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [0.25] * 3
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.75] * 3
    assert scaler.get_scale() == 1024.0


def test_scaler_skips_infinite_gradients_and_backs_off() -> None:
    weight = nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    scaler = torch.amp.GradScaler("neuron", init_scale=1024.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0] * 3
    assert scaler.get_scale() == 512.0


def test_scaler_state_round_trip() -> None:
    scaler = torch.amp.GradScaler("neuron", init_scale=8.0)
    scaler.scale(torch.ones(1, device=DEVICE))
    other = torch.amp.GradScaler("neuron")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0


RESIZED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "nearest of lines": ((2, 3, 4), {"mode": "nearest"}),
    "nearest": ((2, 3, 4, 4), {"mode": "nearest"}),
    "nearest of volumes": ((2, 3, 2, 4, 4), {"mode": "nearest"}),
    "nearest-exact of lines": ((2, 3, 4), {"mode": "nearest-exact"}),
    "nearest-exact": ((2, 3, 4, 4), {"mode": "nearest-exact"}),
    "nearest-exact of volumes": ((2, 3, 2, 4, 4), {"mode": "nearest-exact"}),
    "linear": ((2, 3, 4), {"mode": "linear"}),
    "bilinear": ((2, 3, 4, 4), {"mode": "bilinear"}),
    "bilinear, smoothed": ((2, 3, 4, 4), {"mode": "bilinear", "antialias": True}),
    "trilinear": ((2, 3, 2, 4, 4), {"mode": "trilinear"}),
    "bicubic": ((2, 3, 4, 4), {"mode": "bicubic"}),
    "bicubic, smoothed": ((2, 3, 4, 4), {"mode": "bicubic", "antialias": True}),
}


@pytest.mark.parametrize("backend", ["neuron", "aot_eager"])
@pytest.mark.parametrize("name", RESIZED)
def test_compiled_resampling_has_the_type_of_eager_mode(name: str, backend: str) -> None:
    """PyTorch's tracing makes a formula of it before the operator that its list of types names."""
    shape, options = RESIZED[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=1.5, **options)

    x = torch.linspace(-2, 2, math.prod(shape)).reshape(shape).to("neuron", torch.bfloat16)
    torch.compiler.reset()
    with torch.autocast("neuron", torch.bfloat16):
        eager, compiled = function(x), torch.compile(function, backend=backend)(x)
    assert eager.dtype == compiled.dtype == torch.float32
    torch.testing.assert_close(compiled, eager)


def test_compiled_ldexp_has_the_type_of_eager_mode() -> None:
    x = torch.ones(3, device="neuron", dtype=torch.bfloat16)
    torch.compiler.reset()
    with torch.autocast("neuron", torch.bfloat16):
        eager, compiled = torch.ldexp(x, x), torch.compile(torch.ldexp, backend="neuron")(x, x)
    assert eager.dtype == compiled.dtype == torch.float32
