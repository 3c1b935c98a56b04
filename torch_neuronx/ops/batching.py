"""Rules of `torch.func.vmap` for operators of this device that PyTorch has none for.

The examples of fused attention become more batches of one call, as PyTorch does it with the
operators that other devices have for attention. PyTorch's own fallback, a call for each example,
takes only operators that return nothing but tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_fused_attention_overrideable.default  # noqa: SLF001
_BACKWARD = _aten._scaled_dot_product_fused_attention_overrideable_backward.default  # noqa: SLF001
_SCORES = 4  # dimensions that a bias is added to: batch, heads, queries, keys
_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Make them known to PyTorch, once in a process."""
    torch.library.register_vmap(_FORWARD, _forward, lib=_library)
    torch.library.register_vmap(_BACKWARD, _backward, lib=_library)


def _forward(
    info: Any, dims: Sequence[int | None], query: Tensor, key: Tensor, value: Tensor,
    bias: Tensor | None = None, *rest: Any, scale: float | None = None,
) -> Any:  # fmt: skip
    dims = (*dims, *[None] * (4 - len(dims)))
    merged = _merged((query, key, value), dims, info.batch_size)
    shape = (info.batch_size, query.shape[_after(dims[0])])
    added = _merged_bias(bias, dims[3], shape)
    out, logsumexp, *states = _FORWARD(*merged, added, *rest, scale=scale)
    return _results((out, logsumexp), shape, states)


def _backward(
    info: Any, dims: Sequence[int | None], grad: Tensor, query: Tensor, key: Tensor,
    value: Tensor, bias: Tensor | None, mask: Sequence[bool], out: Tensor, logsumexp: Tensor,
    *rest: Any, scale: float | None = None,
) -> Any:  # fmt: skip
    own = _merged((grad, query, key, value), dims, info.batch_size)
    kept = _merged((out, logsumexp), dims[6:], info.batch_size)
    shape = (info.batch_size, query.shape[_after(dims[1])])
    added = _merged_bias(bias, dims[4], shape)
    *grads, of_bias = _BACKWARD(*own, added, mask, *kept, *rest, scale=scale)
    return _results(grads, shape, [of_bias])


def _after(dim: int | None) -> int:
    """Where the first dimension of one example stands."""
    return 1 if dim == 0 else 0


def _first(x: Tensor, dim: int | None, examples: int) -> Tensor:
    """The tensor with its examples along the first dimension, all the same if it has none."""
    return x.expand(examples, *x.shape) if dim is None else x.movedim(dim, 0)


def _merged(tensors: Sequence[Tensor], dims: Sequence[int | None], examples: int) -> list[Tensor]:
    """Tensors of one batch each as [examples * batch, ...]."""
    pairs = zip(tensors, dims, strict=False)
    return [_first(x, dim, examples).flatten(0, 1) for x, dim in pairs]


def _merged_bias(bias: Tensor | None, dim: int | None, shape: tuple[int, int]) -> Tensor | None:
    """The same of a bias, which may have fewer dimensions and be the same for all of a batch.

    Where there is none, the backward pass gets an empty tensor of one dimension.

    Args:
        bias: What is added to the scores, or says which of them count.
        dim: Where its examples are, if it has any.
        shape: Examples, and the batch of one.
    """
    if bias is None or (bias.dim() == 1 and bias.numel() == 0):
        return bias
    if dim is None and (bias.dim() < _SCORES or bias.shape[0] == 1):
        return bias
    each = _first(bias, dim, shape[0])
    each = each.reshape(shape[0], *[1] * (_SCORES + 1 - each.dim()), *each.shape[1:])
    return each.expand(*shape, *each.shape[2:]).flatten(0, 1)


def _results(tensors: Sequence[Tensor | None], shape: tuple[int, int], rest: Sequence[Any]) -> Any:
    """Results with and without examples, and where these are."""
    apart = [None if x is None else x.unflatten(0, shape) for x in tensors]
    where = [None if x is None else 0 for x in apart]
    return (*apart, *rest), (*where, *(None for _ in rest))
