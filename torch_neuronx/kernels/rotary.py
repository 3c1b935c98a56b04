"""Rotary position embedding: pairs of components turned by an angle that grows with the position.

Components i and i + width / 2 of a head make a pair.
"""

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

__all__ = ["rotary", "rotary_reference"]


@nki.jit
def rotary_kernel(x: Any, cos: Any, sin: Any, backwards: bool) -> Any:
    """Turn [batch, heads, positions, width] by cos and sin [positions, width / 2], or back."""
    batch, heads, positions, width = x.shape
    half = width // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start, end in spans(positions):
        c, s = load(cos[start:end]), load(sin[start:end])
        count = end - start
        for b in nl.affine_range(batch):
            for h in nl.affine_range(heads):
                tile = load(x[b, h, start:end])
                result = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.sbuf)
                for own, other, adds in ((0, half, backwards), (half, 0, not backwards)):
                    turned = nl.ndarray((count, half), dtype=nl.float32, buffer=nl.sbuf)
                    crossed = nl.ndarray((count, half), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_tensor(
                        dst=turned, data1=tile[:, own : own + half], data2=c, op=nl.multiply
                    )
                    nisa.tensor_tensor(
                        dst=crossed, data1=tile[:, other : other + half], data2=s, op=nl.multiply
                    )
                    nisa.tensor_tensor(
                        dst=result[:, own : own + half], data1=turned, data2=crossed,
                        op=nl.add if adds else nl.subtract,
                    )  # fmt: skip
                nisa.dma_copy(dst=out[b, h, start:end], src=result)
    return out


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with its pairs turned; differentiable in x.

    Args:
        x: [batch, heads, positions, width], an even width.
        cos: [positions, width / 2], float32: cosines of the angles.
        sin: Likewise: sines.
    """
    out: Tensor = _turn(x, cos, sin, backwards=False)
    return out


def rotary_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute the same by operators of PyTorch."""
    first, second = wide(x).chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


@nki_op("torch_neuronx_kernels::rotary", mutates_args=())
def _turn(x: Tensor, cos: Tensor, sin: Tensor, backwards: bool) -> Tensor:
    out: Tensor = rotary_kernel(x, cos, sin, backwards)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    _, cos, sin, ctx.backwards = inputs
    ctx.save_for_backward(cos, sin)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    """Turning is orthogonal: its gradient is turning back."""
    return _turn(grad, *ctx.saved_tensors, not ctx.backwards), None, None, None


_turn.register_autograd(_gradient, setup_context=_save)
