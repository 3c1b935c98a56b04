"""Softmax, layer norm and RMS norm of the native core against float64.

Bounds, with u = 2^-24: a row sum over lanes and blocks has a relative error of a few u whatever the
length, and so has mostly one of a norm's rows, whose lanes add 128 numbers at most; x - max and
x - mean are off by u |x| and u |mean|, which shows as a relative error of the exponential or as an
absolute error times rstd.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.isas import core

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (3, 7), (40, 333), (4, 4096), (2, 20_001)]
UNIT = 2.0**-24  # half a step of float32 at 1
# Half a step, relative, plus the error of the shorter exponential that 16-bit results use.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8 * 1.05, torch.float16: 2.0**-11 * 1.05}
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
EPS = 1e-5


def draw(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, scale: float = 1.0, shift: float = 0.0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale + shift).to(dtype)


def within(result: Tensor, exact: Tensor, absolute: Tensor | float, relative: float = 0.0) -> bool:
    """|result - exact| <= absolute + relative |exact| + what rounding to the dtype allows."""
    allowed = (
        absolute
        + (relative + ROUNDING[result.dtype]) * exact.abs()
        + SMALLEST[result.dtype] * torch.ones_like(exact)
    )
    return bool(((result.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmax(isa: str, dtype: torch.dtype, shape: tuple[int, int], scale: float) -> None:
    x = draw(shape, dtype, 0, scale, shift=5.0)
    out = torch.empty_like(x)
    wide = x.double()
    reach = (wide.amax(1, keepdim=True) - wide).abs()
    core.kernel_softmax(x, out, log=False)
    exact = wide.softmax(1)
    # In float32 e^-104 and less is 0.
    assert within(out, exact, exact * UNIT * (12 + 3 * reach) + 1e-45), isa
    # Two results within half a step each may be a step apart, which the defaults do not allow.
    steps: dict[str, Any] = (
        {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-5} if dtype != torch.float32 else {}
    )
    torch.testing.assert_close(out, x.softmax(1), **steps)
    core.kernel_softmax(x, out, log=True)
    exact = wide.log_softmax(1)
    assert within(out, exact, UNIT * (8 + 4 * reach)), isa
    if dtype != torch.float32:
        steps["atol"] = 8 * torch.finfo(dtype).eps  # torch gives 0 for small results, see above
    torch.testing.assert_close(out, x.log_softmax(1), **steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_special_rows(isa: str, dtype: torch.dtype, log: bool) -> None:
    x = draw((6, 37), dtype, 1)
    x[0] = -math.inf
    x[1, 5] = math.nan
    x[2, 36] = math.inf
    x[3, :36] = -math.inf
    x[4, ::2] = -math.inf
    out = torch.empty_like(x)
    core.kernel_softmax(x, out, log=log)
    expected = x.log_softmax(1) if log else x.softmax(1)
    torch.testing.assert_close(out, expected, equal_nan=True, msg=lambda m: isa + m)
    assert out[0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # the second makes rows with one likely element
def test_softmax_backward(
    isa: str, dtype: torch.dtype, shape: tuple[int, int], log: bool, scale: float
) -> None:
    y = draw(shape, torch.float32, 2, scale)
    y = (y.log_softmax(1) if log else y.softmax(1)).to(dtype)
    grad = draw(shape, dtype, 3)
    out = torch.empty_like(y)
    core.kernel_softmax_backward(grad, y, out, log=log)
    g, v = grad.double(), y.double()
    size = (g.abs() if log else (g * v).abs()).sum(1, keepdim=True)
    if log:
        exact = g - v.exp() * g.sum(1, keepdim=True)
        allowed = UNIT * (g.abs() + v.exp() * (1 + v.abs()) * size * 8)
    else:
        exact = (g - (g * v).sum(1, keepdim=True)) * v
        allowed = UNIT * 8 * (g.abs() + size) * v
    assert within(out, exact, allowed), isa


def sum_in_order(row: Tensor, lanes: int) -> Tensor:
    """Four vectors of partial sums, and what is left over; see kernels/norm_impl.h."""
    main = 4 * lanes

    def folded(partial: Tensor, to: int) -> Tensor:
        while len(partial) > to:
            partial = partial[: len(partial) // 2] + partial[len(partial) // 2 :]
        return partial

    full = len(row) // main * main
    partial = torch.zeros(main)
    for start in range(0, full, main):
        partial = partial + row[start : start + main].float()
    if rest := len(row) - full:
        tail = torch.zeros(1 << (rest - 1).bit_length())
        tail[:rest] += row[full:].float()
        partial = folded(partial, len(tail)) + tail
    return folded(partial, 1)[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1, 2, 3, 15, 16, 17, 31, 64, 65, 97, 128, 333, 1024, 1100])
def test_sums_of_rows_have_one_order(isa: str, dtype: torch.dtype, cols: int) -> None:
    x = draw((5, cols), dtype, cols, 3.0, 0.5)
    sums = torch.stack([sum_in_order(row, core.kernel_lanes()) for row in x])
    out = torch.empty(5, dtype=dtype)
    core.kernel_sum_rows(x, out, mean=False)
    assert torch.equal(out, sums.to(dtype)), isa
    core.kernel_sum_rows(x, out, mean=True)
    assert torch.equal(out, (sums / cols).to(dtype)), isa


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(x)
    mean, rstd = torch.empty(len(x)), torch.empty(len(x))
    core.kernel_layer_norm(x, weight, bias, EPS, out, mean, rstd)
    return out, mean, rstd


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weights", ["none", "weight", "bias", "both", "float32"])
@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_layer_norm(
    isa: str, dtype: torch.dtype, shape: tuple[int, int], weights: str, shift: float
) -> None:
    x = draw(shape, dtype, 4, shift=shift)
    of = torch.float32 if weights == "float32" else dtype
    weight = draw((shape[1],), of, 5) if weights not in {"none", "bias"} else None
    bias = draw((shape[1],), of, 6) if weights not in {"none", "weight"} else None
    out, mean, rstd = layer_norm(x, weight, bias)
    wide = x.double()
    center = wide.mean(1, keepdim=True)
    scale = (wide.var(1, unbiased=False, keepdim=True) + EPS).rsqrt()
    normal = (wide - center) * scale
    w = torch.ones(shape[1]).double() if weight is None else weight.double()
    b = torch.zeros(shape[1]).double() if bias is None else bias.double()
    exact = normal * w + b
    # The mean is rounded to float32, and the terms of its sum in lanes of at most 20 additions
    # (whose errors mostly cancel: 8). Seen through rstd, and squared in the variance.
    off = UNIT * (center.abs() + 8 * wide.abs().mean(1, keepdim=True)) * scale
    allowed = (24 * UNIT * normal.abs() + 2 * off + normal.abs() * off * off) * w.abs()
    assert within(out, exact, allowed + UNIT * 2 * b.abs()), isa
    torch.testing.assert_close(mean.double(), center[:, 0], rtol=UNIT * 4, atol=UNIT * 4)
    tolerance = UNIT * 22 + float((off * off).max())
    torch.testing.assert_close(rstd.double(), scale[:, 0], rtol=tolerance, atol=0)


def test_layer_norm_of_a_huge_mean() -> None:
    """torch's example of a bad case: the two-pass variance keeps all bits that the input has."""
    x = (torch.arange(4096, dtype=torch.float32) % 8 + 2.0**20).reshape(1, -1)
    out, mean, rstd = layer_norm(x, None, None)
    wide = x.double()
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=1e-7, atol=0)
    exact = 1 / (wide.var(1, unbiased=False) + EPS).sqrt()
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-4, atol=0)
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", ["none", "same", "float32"])
@pytest.mark.parametrize("rms", [False, True])
def test_norm_backward(
    isa: str, dtype: torch.dtype, shape: tuple[int, int], weighted: str, rms: bool
) -> None:
    x, grad = draw(shape, dtype, 7, shift=0.5), draw(shape, dtype, 8)
    of = torch.float32 if weighted == "float32" else dtype
    weight = None if weighted == "none" else draw((shape[1],), of, 9)
    wide = x.double().requires_grad_()
    w = torch.ones(shape[1]).double() if weight is None else weight.double()
    w.requires_grad_()
    b = torch.zeros(shape[1]).double().requires_grad_()
    if rms:
        center = torch.zeros(shape[0], 1).double()
        scale = (wide.square().mean(1, keepdim=True) + EPS).rsqrt()
        (wide * scale * w + b).backward(grad.double())
    else:
        center = wide.detach().mean(1, keepdim=True)
        scale = (wide.var(1, unbiased=False, keepdim=True) + EPS).rsqrt()
        torch.nn.functional.layer_norm(wide, (shape[1],), w, b, EPS).backward(grad.double())
    mean, rstd = center[:, 0].float(), scale.detach()[:, 0].float()
    grad_in = torch.empty_like(x)
    grad_weight = torch.empty(shape[1], dtype=of)
    grad_bias = torch.empty(shape[1], dtype=of)
    if rms:
        core.kernel_rms_norm_backward(grad, x, rstd, weight, grad_in, grad_weight)
    else:
        core.kernel_layer_norm_backward(
            grad, x, mean, rstd, weight, grad_in, grad_weight, grad_bias
        )
    normal = ((wide - center) * scale).detach().abs()
    g = (grad.double() * w.detach()).abs()
    size = g + g.mean(1, keepdim=True) + normal * (g * normal).mean(1, keepdim=True)
    assert wide.grad is not None
    assert w.grad is not None
    assert b.grad is not None
    assert within(grad_in, wide.grad, 24 * UNIT * size * scale.detach()), isa
    # Sums over rows, at most shape[0] additions one after the other.
    terms = grad.double().abs() * (normal + 1)
    assert within(grad_weight, w.grad, UNIT * (8 + shape[0]) * terms.sum(0))
    if not rms:
        assert within(grad_bias, b.grad, UNIT * (8 + shape[0]) * terms.sum(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(isa: str, dtype: torch.dtype, shape: tuple[int, int], weighted: bool) -> None:
    x = draw(shape, dtype, 10)
    weight = draw((shape[1],), dtype, 11) if weighted else None
    out, rstd = torch.empty_like(x), torch.empty(shape[0])
    core.kernel_rms_norm(x, weight, EPS, out, rstd)
    wide = x.double()
    scale = (wide.square().mean(1, keepdim=True) + EPS).rsqrt()
    exact = wide * scale * (1.0 if weight is None else weight.double())
    assert within(out, exact, 0.0, 24 * UNIT), isa
    torch.testing.assert_close(rstd.double(), scale[:, 0], rtol=24 * UNIT, atol=0)
    reference, reference_rstd = torch.ops.aten._fused_rms_norm(x, [shape[1]], weight, EPS)
    torch.testing.assert_close(out, reference)
    torch.testing.assert_close(rstd, reference_rstd[:, 0].float())


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 333])
def test_results_do_not_depend_on_threads(rows: int) -> None:
    x, grad = draw((rows, 100), torch.float32, 12), draw((rows, 100), torch.float32, 13)
    weight = draw((100,), torch.float32, 14)

    def run() -> list[Tensor]:
        out, mean, rstd = layer_norm(x, weight, weight)
        grads = [torch.empty_like(x), torch.empty(100), torch.empty(100)]
        core.kernel_layer_norm_backward(grad, x, mean, rstd, weight, *grads)
        soft = torch.empty_like(x)
        core.kernel_softmax(x, soft, log=False)
        return [out, mean, rstd, soft, *grads]

    threads = torch.get_num_threads()
    many = run()
    try:
        torch.set_num_threads(1)
        one = run()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(many, one, strict=True))
    if rows == 0:
        assert all(not g.any() for g in many[-2:])


def test_in_place() -> None:
    x = draw((33, 500), torch.float32, 15)
    out = torch.empty_like(x)
    core.kernel_softmax(x, out, log=False)
    inside = x.clone()
    core.kernel_softmax(inside, inside, log=False)
    assert torch.equal(inside, out)


def test_dtypes_are_checked() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match='"softmax" not implemented for'):
        core.kernel_softmax(x, x, log=False)
    x = torch.zeros(2, 3)
    weight = torch.zeros(3, dtype=torch.bfloat16)
    with pytest.raises(
        RuntimeError, match="layer_norm: weights must be Float like the input, or Float, got BFl"
    ):
        layer_norm(x, weight, None)
