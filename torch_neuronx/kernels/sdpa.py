"""`TORCH_NEURONX_ENABLE_NKI_SDPA=1`: scaled_dot_product_attention by kernels of NKI.

PyTorch takes the attention of neuron tensors to one operator, and differentiates that by another;
both are answered here where the kernels take the operands, else by what answered them before.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from neuronxcc.environment.kernels import TORCH_NEURONX_ENABLE_NKI_SDPA

__all__ = ["enabled", "install", "takes"]

_NAME = "_scaled_dot_product_fused_attention_overrideable"
_KEYS = DispatchKeySet(DispatchKey.PrivateUse1)


def enabled() -> bool:
    """Return whether the environment asks for it."""
    return TORCH_NEURONX_ENABLE_NKI_SDPA.get()


@functools.cache
def install() -> None:
    """Answer the operators of neuron tensors, once; `enabled` is asked at every call."""
    library = torch.library.Library("aten", "IMPL")
    for name, make in ((_NAME, _forward), (f"{_NAME}_backward", _backward)):
        before = torch.library.get_kernel(f"aten::{name}", "PrivateUse1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is what is wanted
            library.impl(name, make(before), "PrivateUse1", allow_override=True)
    _LIBRARIES.append(library)


_LIBRARIES: list[torch.library.Library] = []  # PyTorch forgets what a lost one has registered


def takes(*operands: Any, bias: Any, dropout: float) -> bool:
    """Return whether the kernels take queries, keys and values; says once why not."""
    from torch_neuronx.kernels.attention import unsupported  # noqa: PLC0415 - needs Dynamo

    why = "a mask" if bias is not None else "dropout" if dropout else ""
    why = why or unsupported(*operands)
    if why:
        _notice(why)
    return not why


@functools.cache
def _notice(why: str) -> None:
    warnings.warn(
        f"TORCH_NEURONX_ENABLE_NKI_SDPA=1: attention of {why} is not for NKI's kernels; "
        "PyTorch's own path is taken",
        UserWarning,
        stacklevel=2,
    )


def _forward(before: Any) -> Any:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False,
        *, scale: float | None = None,
    ) -> Any:  # fmt: skip
        if not enabled() or not takes(query, key, value, bias=attn_bias, dropout=dropout_p):
            return before.call_boxed(
                _KEYS, query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask,
                scale=scale,
            )  # fmt: skip
        from torch_neuronx.kernels.flash_forward import flash_forward  # noqa: PLC0415

        factor = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.no_grad():
            out, lse = flash_forward(query, key, value, factor, is_causal)
        none: Any = None
        return out, lse, none, none, query.shape[2], key.shape[2], none, none, none

    return attention


def _backward(before: Any) -> Any:
    def attention_backward(
        grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Any,
        grad_input_mask: Any, out: Tensor, logsumexp: Tensor, *rest: Any,
        scale: float | None = None,
    ) -> Any:  # fmt: skip
        dropout, causal = rest[4], rest[5]
        bias = attn_bias if attn_bias is not None and attn_bias.numel() else None
        if not enabled() or not takes(query, key, value, bias=bias, dropout=dropout):
            return before.call_boxed(
                _KEYS, grad, query, key, value, attn_bias, grad_input_mask, out, logsumexp, *rest,
                scale=scale,
            )  # fmt: skip
        from torch_neuronx.kernels.flash_backward import flash_backward  # noqa: PLC0415

        factor = query.shape[-1] ** -0.5 if scale is None else scale
        with torch.no_grad():
            grads = flash_backward(grad, query, key, value, out, logsumexp, factor, causal)
        wanted = zip(grads, grad_input_mask[:3], strict=True)
        return (*(g if mask else None for g, mask in wanted), None)

    return attention_backward
