"""RMSNorm: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from torch_neuronx.kernels.reference import wide
from torch_neuronx.kernels.tiles import load, row_vector, spans
from torch_neuronx.nki import nki_op

__all__ = ["rms_norm", "rms_norm_reference"]

_CHUNK = 512  # columns that one product to a single row takes


@nki.jit
def forward_kernel(x: Any, weight: Any, eps: float) -> Any:
    """The norm of rows [n, width], and float32 [n]: the reciprocals of their roots."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    inverse = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    scale = row_vector(weight, min(rows, 128))
    for start, end in spans(rows):
        tile, count = load(x[start:end]), end - start
        squares = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total
        )
        # eps is not a constant of the engine that takes roots, so it is added before.
        nisa.tensor_scalar(
            dst=total, data=total, op0=nl.multiply, operand0=1.0 / width, op1=nl.add, operand1=eps
        )
        nisa.activation(dst=total, op=nl.rsqrt, data=total)
        result = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=result, data=tile, op0=nl.multiply, operand0=total, op1=nl.multiply,
            operand1=scale[0:count],
        )  # fmt: skip
        nisa.dma_copy(dst=out[start:end], src=result)
        nisa.dma_copy(dst=inverse[start:end].ap([[1, count], [1, 1]]), src=total)
    return out, inverse


@nki.jit
def backward_kernel(grad: Any, x: Any, weight: Any, inverse: Any) -> Any:
    """Gradients of x, and float32 of the weight."""
    rows, width = x.shape
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dw = nl.ndarray((width,), dtype=nl.float32, buffer=nl.shared_hbm)
    most = min(rows, 128)
    scale = row_vector(weight, most)
    sums = nl.ndarray((most, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=0.0)
    for start, end in spans(rows):
        count = end - start
        tile, given = load(x[start:end]), load(grad[start:end])
        root = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=root, src=inverse[start:end].ap([[1, count], [1, 1]]))
        normed = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=normed, data=tile, op0=nl.multiply, operand0=root)
        part = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=part, data1=given, data2=normed, op=nl.multiply)
        nisa.tensor_tensor(dst=sums[0:count], data1=sums[0:count], data2=part, op=nl.add)
        # dx = inverse * (g - normed * mean(g * normed)) with g = grad * weight
        scaled = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=scaled, data1=given, data2=scale[0:count], op=nl.multiply)
        nisa.tensor_tensor(dst=part, data1=scaled, data2=normed, op=nl.multiply)
        mean = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=mean, op=nl.add, data=part, axis=1)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=-1.0 / width)
        nisa.scalar_tensor_tensor(
            dst=scaled, data=normed, op0=nl.multiply, operand0=mean, op1=nl.add, operand1=scaled
        )
        result = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=scaled, op0=nl.multiply, operand0=root)
        nisa.dma_copy(dst=dx[start:end], src=result)
    ones = nl.ndarray((most, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    for start, end in spans(width, _CHUNK):
        total = nl.ndarray((1, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=ones, moving=sums[:, start:end])
        kept = nl.ndarray((1, end - start), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=kept, src=total)
        nisa.dma_copy(dst=dw[start:end].ap([[1, 1], [1, end - start]]), src=kept)
    return dx, dw


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension; differentiable.

    Args:
        x: [..., width], float32, bfloat16 or float16.
        weight: [width].
        eps: Added to the mean.
    """
    rows = x.reshape(-1, x.shape[-1])
    out: Tensor = _forward(rows, weight, float(eps))[0]
    return out.reshape(x.shape)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Compute the same by operators of PyTorch."""
    given = wide(x)
    normed = given * torch.rsqrt(given.square().mean(-1, keepdim=True) + eps)
    return (normed * wide(weight)).to(x.dtype)


@nki_op("torch_neuronx_kernels::rms_norm", mutates_args=())
def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, inverse = forward_kernel(x, weight, eps)
    return out, inverse


@nki_op("torch_neuronx_kernels::rms_norm_backward", mutates_args=())
def _backward(grad: Tensor, x: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    dx, dw = backward_kernel(grad, x, weight, inverse)
    return dx, dw


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
    dx, dw = _backward(grad, *ctx.saved_tensors)
    return dx, dw.to(ctx.saved_tensors[1].dtype), None


_forward.register_autograd(_gradient, setup_context=_save)
