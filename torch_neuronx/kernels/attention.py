"""Attention by kernels of NKI: as an operator with gradients, and what it takes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nki.errors import NkiError
from torch_neuronx.kernels.flash_backward import flash_backward
from torch_neuronx.kernels.flash_forward import flash_forward
from torch_neuronx.kernels.tiles import PARTITIONS
from torch_neuronx.nki import nki_op

__all__ = ["attention", "attention_reference", "unsupported"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_BUDGET = 128 << 10  # bytes of a partition of SBUF for what stays there; all have 192 KiB at least


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return softmax(query key^T * scale) value; differentiable.

    Args:
        query: [batch, heads, queries, width], float32, bfloat16 or float16.
        key: [batch, key heads, keys, width]; heads are a multiple of key heads.
        value: Like `key`.
        causal: Query i sees the keys 0 to i only.
        scale: 1 / sqrt(width) if None.

    Raises:
        NkiError: The kernels do not take these shapes or types (NKI274).
    """
    why = unsupported(query, key, value)
    if why:
        raise NkiError(
            "NKI274", f"attention of {why}", "use torch's scaled_dot_product_attention for it"
        )
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    out: Tensor = _forward(query, key, value, factor, causal)[0]
    return out


def attention_reference(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Compute the same by operators of PyTorch, one after the other."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * factor
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ value


def unsupported(query: Any, key: Any, value: Any) -> str:  # noqa: PLR0911 - one for each reason
    """Say why the kernels do not take tensors (or anything with shape and dtype); "" if they do."""
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        return "tensors that do not have four dimensions"
    if len({x.dtype for x in (query, key, value)}) > 1 or query.dtype not in DTYPES:
        return f"{query.dtype}, {key.dtype} and {value.dtype}"
    (batch, heads, queries, width), (key_batch, key_heads, keys, key_width), rest = shapes
    if rest != shapes[1] or (key_batch, key_width) != (batch, width) or heads % key_heads:
        return f"shapes {shapes[0]}, {shapes[1]} and {rest}"
    if width > PARTITIONS:
        return f"width {width}, more than {PARTITIONS}"
    if 0 in shapes[0] or 0 in shapes[1]:
        return "no elements"
    if _resident(heads // key_heads, queries, keys, width, query.dtype.itemsize) > _BUDGET:
        return f"{queries} queries and {keys} keys, more than SBUF holds"
    return ""


def _resident(shared: int, queries: int, keys: int, width: int, itemsize: int) -> int:
    """Bytes that each partition of SBUF holds of keys (forward) or queries (backward)."""
    tiles = -(-keys // PARTITIONS)
    forward = itemsize * (keys + tiles * width)
    tile = itemsize * 2 * (width + PARTITIONS) + 4 * (width + 2)
    return max(forward, shared * -(-queries // PARTITIONS) * tile)


@nki_op("torch_neuronx_kernels::attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    out, lse = flash_forward(q, k, v, scale, causal)
    return out, lse


@nki_op("torch_neuronx_kernels::attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = flash_backward(grad, q, k, v, out, lse, scale, causal)
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.scale, ctx.causal = inputs[3:]
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    return (*_backward(grad, *ctx.saved_tensors, ctx.scale, ctx.causal), None, None)


_forward.register_autograd(_gradient, setup_context=_save)
