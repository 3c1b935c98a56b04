"""Attention over a paged cache of keys and values, and writing to it, as operators of PyTorch.

A cache is [blocks, block size, key heads, width]. A sequence owns blocks anywhere in it, and its
row of the block table names them in order: its key number i is at ``cache[table[i // size], i %
size]``. That is the form of `torch.nn.attention.varlen` with ``block_table``, whose native kernel
of this device does the work; on the CPU, which has none, the reference does.

The operators are ``torch.ops.torch_neuronx_kernels.paged_attention`` and ``.write_pages``, and in a
compiled graph one step each. `paged_attention_nki` and `write_pages_nki` (paged_nki.py) are the
same as kernels of a NeuronCore.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["paged_attention", "paged_attention_reference", "write_pages", "write_pages_reference"]

_LIBRARY = torch.library.Library("torch_neuronx_kernels", "FRAGMENT")
_LIBRARY.define(
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor lengths, Tensor query_starts, float? scale=None) -> Tensor"
)
_LIBRARY.define(
    "write_pages(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slots) -> ()"
)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return causal attention of each sequence's last tokens over all its keys; no gradients.

    Decoding is one query a sequence, a chunk of a prompt several; both may be in one call. The
    queries of a sequence are its last tokens, whose keys and values are already in the cache: with
    n queries and `lengths[s]` keys, query i sees the keys 0 to lengths[s] - n + i.

    Args:
        query: [tokens, heads, width], float32, bfloat16 or float16: those of the first sequence,
            of the second, and so on.
        key_cache: [blocks, block size, key heads, width]; heads are a multiple of key heads.
        value_cache: Like `key_cache`.
        block_table: int32 [sequences, most blocks of a sequence]; what is behind the blocks that
            `lengths` needs is not looked at.
        lengths: int32 [sequences]: keys of each sequence, its queries' own included.
        query_starts: int32 [sequences + 1]: where the queries of each sequence begin, and the end.
        scale: What products of queries and keys are multiplied by; 1 / sqrt(width) if None.

    Returns:
        Like `query`. A query that sees no key gives zeros.

    Raises:
        ValueError: Shapes or dtypes do not fit together.
        RuntimeError: A length needs more blocks than the table has.
        IndexError: A block is not in the cache.
        NotImplementedError: An operand requires gradients.
    """
    _no_gradients("paged_attention", query, key_cache, value_cache)
    out: Tensor = torch.ops.torch_neuronx_kernels.paged_attention(
        query, key_cache, value_cache, block_table, lengths, query_starts, scale
    )
    return out


def write_pages(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Write keys and values of tokens into slots of a paged cache.

    Args:
        key: [tokens, key heads, width].
        value: Like `key`.
        key_cache: [blocks, block size, key heads, width], contiguous; written.
        value_cache: Like `key_cache`; written.
        slots: int64 [tokens]: block * block size + place in the block, of each token. If a slot
            occurs twice, either token may win.

    Raises:
        ValueError: Shapes or dtypes do not fit together, or a cache is not contiguous.
        IndexError: A slot is not in the cache.
        NotImplementedError: An operand requires gradients.
    """
    _no_gradients("write_pages", key, value, key_cache, value_cache)
    torch.ops.torch_neuronx_kernels.write_pages(key, value, key_cache, value_cache, slots)


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `paged_attention` sequence by sequence from gathered keys, in plain operators."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key_cache.shape[2]
    size = key_cache.shape[1]
    out = torch.zeros_like(query)
    starts = query_starts.tolist()
    for s, length in enumerate(lengths.tolist()):
        blocks = block_table[s, : -(-length // size)].long()
        if blocks.numel() * size < length:
            raise RuntimeError(f"{length} keys do not fit into {blocks.numel()} blocks of {size}")
        if blocks.numel() and not 0 <= blocks.min() <= blocks.max() < key_cache.shape[0]:
            raise IndexError(
                f"sequence {s} has the blocks {blocks.tolist()} of {key_cache.shape[0]}"
            )
        keys, values = (
            cache[blocks].flatten(0, 1)[:length].repeat_interleave(group, 1)
            for cache in (key_cache, value_cache)
        )
        mine = query[starts[s] : starts[s + 1]]
        own = torch.arange(len(mine), device=query.device) + length - len(mine)
        seen = torch.arange(length, device=query.device) <= own[:, None]
        scores = torch.einsum("qhw,khw->hqk", mine, keys) * scale
        # The softmax of no scores is not defined: such a query's weights are zeros.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) * seen
        out[starts[s] : starts[s + 1]] = torch.einsum("hqk,khw->qhw", weights, values)
    return out


def write_pages_reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Do what `write_pages` does, token by token."""
    size = key_cache.shape[1]
    for i, slot in enumerate(slots.tolist()):
        key_cache[slot // size, slot % size] = key[i]
        value_cache[slot // size, slot % size] = value[i]


def _no_gradients(name: str, *operands: Tensor) -> None:
    if torch.is_grad_enabled() and any(t.requires_grad for t in operands):
        raise NotImplementedError(f"{name} has no gradients; call it under torch.no_grad()")


def _check_caches(key_cache: Tensor, value_cache: Tensor) -> None:
    if key_cache.dim() != 4 or value_cache.shape != key_cache.shape or 0 in key_cache.shape[1:]:
        raise ValueError(
            "the caches must both be [blocks, block size, key heads, width], got "
            f"{tuple(key_cache.shape)} and {tuple(value_cache.shape)}"
        )


def _check_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
) -> None:
    _check_caches(key_cache, value_cache)
    heads, width = key_cache.shape[2:]
    if query.dim() != 3 or query.shape[2] != width or query.shape[1] % heads:
        raise ValueError(
            f"the query must be [tokens, a multiple of {heads} heads, {width}], "
            f"got {tuple(query.shape)}"
        )
    if not query.dtype == key_cache.dtype == value_cache.dtype:
        raise ValueError(
            "query and caches must have one dtype, got "
            f"{query.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        )
    if not query.is_floating_point():
        raise ValueError(f"the query must have a floating point dtype, got {query.dtype}")
    numbers = (block_table, lengths, query_starts)
    if any(t.dtype != torch.int32 for t in numbers):
        raise ValueError(
            "block_table, lengths and query_starts must be int32, got "
            + ", ".join(str(t.dtype) for t in numbers)
        )
    shapes = [tuple(t.shape) for t in numbers]
    if block_table.dim() != 2 or shapes[1:] != [(shapes[0][0],), (shapes[0][0] + 1,)]:
        raise ValueError(
            "block_table, lengths and query_starts must be [sequences, blocks], [sequences] and "
            f"[sequences + 1], got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )


def _check_write(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    _check_caches(key_cache, value_cache)
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ValueError("the caches must be contiguous")
    if slots.dim() != 1 or slots.dtype != torch.int64:
        raise ValueError(f"slots must be int64 [tokens], got {slots.dtype} {tuple(slots.shape)}")
    wanted = (slots.shape[0], *key_cache.shape[2:])
    for name, t, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if tuple(t.shape) != wanted or t.dtype != cache.dtype:
            raise ValueError(
                f"{name} must be {cache.dtype} {wanted}, got {t.dtype} {tuple(t.shape)}"
            )


@torch.library.impl("torch_neuronx_kernels::paged_attention", "PrivateUse1", lib=_LIBRARY)
def _attention_neuron(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    scale: float | None = None,
) -> Tensor:
    _check_attention(query, key_cache, value_cache, block_table, lengths, query_starts)
    most = block_table.shape[1] * key_cache.shape[1]
    out: Tensor = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - varlen_attn's own
        query, key_cache, value_cache, query_starts, None, query.shape[0], most, 0.0,
        True, False, scale=scale, seqused_k=lengths, block_table=block_table,  # noqa: FBT003
    )[0]  # fmt: skip
    return out


@torch.library.impl("torch_neuronx_kernels::paged_attention", "CPU", lib=_LIBRARY)
def _attention_cpu(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    scale: float | None = None,
) -> Tensor:
    _check_attention(query, key_cache, value_cache, block_table, lengths, query_starts)
    return paged_attention_reference(
        query, key_cache, value_cache, block_table, lengths, query_starts, scale=scale
    )


@torch.library.register_fake(  # type: ignore[untyped-decorator] # torch leaves it without types
    "torch_neuronx_kernels::paged_attention", lib=_LIBRARY
)
def _attention_fake(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    scale: float | None = None,  # noqa: ARG001 - the operator's
) -> Tensor:
    _check_attention(query, key_cache, value_cache, block_table, lengths, query_starts)
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


# Composite: a compiled graph has its index_copy_, which writes in place. What an operator unknown
# to the compiler writes would be copied as a whole.
@torch.library.impl("torch_neuronx_kernels::write_pages", "CompositeImplicitAutograd", lib=_LIBRARY)
def _write(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    _check_write(key, value, key_cache, value_cache, slots)
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)
