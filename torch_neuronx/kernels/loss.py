"""Cross-entropy of logits and numbers of classes, without the matrix of probabilities in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from torch_neuronx.kernels.reference import wide
from torch_neuronx.kernels.tiles import load, spans
from torch_neuronx.nki import nki_op

__all__ = ["cross_entropy", "cross_entropy_reference"]

_CHUNK = 2048  # classes that are in SBUF at once
_LOWEST = -3.0e38


@nki.jit
def forward_kernel(logits: Any, targets: Any) -> Any:
    """Losses of rows [n, classes] with int32 targets [n], and log(sum(exp(logits))), float32 [n].

    A target that is no class counts as one with the logit 0.
    """
    rows, classes = logits.shape
    losses = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    lse = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    for start, end in spans(rows):
        count = end - start
        target = _column(targets[start:end])
        largest, weights, picked = (
            nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3)
        )
        for tile, value in ((largest, _LOWEST), (weights, 0.0), (picked, 0.0)):
            nisa.memset(dst=tile, value=value)
        for first, last in spans(classes, _CHUNK):
            tile = load(logits[start:end, first:last])
            _accumulate(tile, largest, weights)
            chosen = _one_hot(target, first, last)
            nisa.tensor_tensor(dst=chosen, data1=chosen, data2=tile, op=nl.multiply)
            part = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=part, op=nl.add, data=chosen, axis=1)
            nisa.tensor_tensor(dst=picked, data1=picked, data2=part, op=nl.add)
        nisa.activation(dst=weights, op=nl.log, data=weights)
        nisa.tensor_tensor(dst=weights, data1=weights, data2=largest, op=nl.add)
        nisa.tensor_tensor(dst=picked, data1=weights, data2=picked, op=nl.subtract)
        nisa.dma_copy(dst=lse[start:end].ap([[1, count], [1, 1]]), src=weights)
        nisa.dma_copy(dst=losses[start:end].ap([[1, count], [1, 1]]), src=picked)
    return losses, lse


@nki.jit
def backward_kernel(grad: Any, logits: Any, targets: Any, lse: Any) -> Any:
    """Gradient of the logits from that of the losses, float32 [n]."""
    rows, classes = logits.shape
    out = nl.ndarray(logits.shape, dtype=logits.dtype, buffer=nl.shared_hbm)
    for start, end in spans(rows):
        count = end - start
        target, factor = _column(targets[start:end]), _column(grad[start:end])
        shift = _column(lse[start:end])
        nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=-1.0)
        for first, last in spans(classes, _CHUNK):
            p = nl.ndarray((count, last - first), dtype=nl.float32, buffer=nl.sbuf)
            tile = load(logits[start:end, first:last])
            nisa.activation(dst=p, op=nl.exp, data=tile, bias=shift)
            chosen = _one_hot(target, first, last)
            nisa.tensor_tensor(dst=p, data1=p, data2=chosen, op=nl.subtract)
            result = nl.ndarray((count, last - first), dtype=logits.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=result, data=p, op0=nl.multiply, operand0=factor)
            nisa.dma_copy(dst=out[start:end, first:last], src=result)
    return out


def _column(vector: Any) -> Any:
    """A vector [n] of HBM as float32 [n, 1]: exact for classes below 2**24."""
    count = vector.shape[0]
    tile = nl.ndarray((count, 1), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.ap([[1, count], [1, 1]]))
    if tile.dtype == nl.float32:
        return tile
    wide = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def _one_hot(target: Any, first: int, last: int) -> Any:
    """1 where a class from `first` on is the row's target, else 0."""
    count = target.shape[0]
    numbers = nl.ndarray((count, last - first), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[1, last - first]], offset=first)
    nisa.tensor_scalar(dst=numbers, data=numbers, op0=nl.equal, operand0=target)
    return numbers


def _accumulate(tile: Any, largest: Any, weights: Any) -> None:
    """Take more logits into the largest one and the sum of exponentials relative to it."""
    count, width = tile.shape
    top, shift, sums, decay = (
        nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)
    )
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1)
    nisa.tensor_tensor(dst=top, data1=top, data2=largest, op=nl.maximum)
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-1.0)
    p = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=p, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=sums, bias=shift
    )
    nisa.activation(dst=decay, op=nl.exp, data=largest, bias=shift)
    nisa.scalar_tensor_tensor(
        dst=weights, data=weights, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=sums
    )
    nisa.tensor_copy(dst=largest, src=top)


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of logits and classes; differentiable in the logits.

    Args:
        logits: [..., classes], float32, bfloat16 or float16, fewer than 2**24 classes.
        targets: [...], integers.
        ignore_index: Rows with this target have the loss 0 and do not count.
        reduction: "mean", "sum" or "none".

    Returns:
        Float32: a number, or for "none" a loss for each row.

    Raises:
        ValueError: Another reduction.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    classes = targets.reshape(-1)
    losses: Tensor = _forward(rows, classes.to(torch.int32))[0]
    return _reduced(losses, classes, ignore_index, reduction, targets.shape)


def cross_entropy_reference(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Compute the same by operators of PyTorch."""
    rows, classes = wide(logits).reshape(-1, logits.shape[-1]), targets.reshape(-1)
    known = torch.where(classes == ignore_index, 0, classes).long()
    losses = rows.logsumexp(-1) - rows.gather(1, known[:, None])[:, 0]
    return _reduced(losses, classes, ignore_index, reduction, targets.shape)


def _reduced(
    losses: Tensor, classes: Tensor, ignored: int, reduction: str, shape: torch.Size
) -> Tensor:
    counted = classes != ignored
    losses = torch.where(counted, losses, 0.0)
    if reduction == "none":
        return losses.reshape(shape)
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / counted.sum()
    raise ValueError(f"reduction={reduction!r}: use mean, sum or none")


@nki_op("torch_neuronx_kernels::cross_entropy", mutates_args=())
def _forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    losses, lse = forward_kernel(logits, targets)
    return losses, lse


@nki_op("torch_neuronx_kernels::cross_entropy_backward", mutates_args=())
def _backward(grad: Tensor, logits: Tensor, targets: Tensor, lse: Tensor) -> Tensor:
    out: Tensor = backward_kernel(grad, logits, targets, lse)
    return out


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
    return _backward(grad.float(), *ctx.saved_tensors), None


_forward.register_autograd(_gradient, setup_context=_save)
