"""Attention over a paged cache, and writing to it, as kernels of NKI.

A block table is data, so the kernels gather and scatter rows of the cache by indirect DMA: 128
tokens at a time, with the keys of all heads in one row. What the tables say is known when the
kernel runs, shapes when it is built: all keys that a row of the table has room for are read, and
those behind a sequence's end are masked. A server therefore cuts its tables to the longest
sequence, rounded up so that few kernels are built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from torch_neuronx.kernels.flash_forward import HIDDEN, add_keys, softmax_state, store_average
from torch_neuronx.kernels.tiles import PARTITIONS, load, spans, transposed
from torch_neuronx.nki import nki_op

__all__ = ["paged_attention_nki", "write_pages_nki"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def paged_attention_nki(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    positions: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return causal attention of tokens over the pages of their sequences; no gradients.

    Args:
        query: [sequences, tokens, heads, width], float32, bfloat16 or float16; width at most 128.
            Decoding has one token a sequence, a chunk of a prompt has several.
        key_cache: [blocks, block size, key heads, width]; heads are a multiple of key heads.
        value_cache: Like `key_cache`.
        block_table: int32 [sequences, blocks]; every entry names a block, also those behind the
            sequence's end (block 0 will do).
        positions: int32 [sequences, tokens]: each token's place in its sequence. It sees the keys
            0 to its own. A token that is there to fill up the row can have place 0.
        scale: What products of queries and keys are multiplied by; 1 / sqrt(width) if None.

    Returns:
        Like `query`.

    Raises:
        NkiError: The kernel does not take these shapes or types (NKI274).
    """
    sequences, tokens, heads, width = query.shape
    blocks, size, key_heads, _ = key_cache.shape
    if width > PARTITIONS or query.dtype not in _DTYPES or heads % key_heads:
        raise NkiError(
            "NKI274",
            f"paged attention of {query.dtype} {tuple(query.shape)} and "
            f"{key_cache.dtype} {tuple(key_cache.shape)}",
            "use torch_neuronx.kernels.paged_attention for it",
        )
    shared = heads // key_heads
    places = torch.arange(size, dtype=torch.int32, device=query.device)
    slots = (block_table[:, :, None] * size + places).flatten(1)
    rows = query.unflatten(2, (key_heads, shared)).transpose(1, 2)
    seen = positions.float().repeat_interleave(shared, 1)
    out: Tensor = _attention(
        rows.reshape(sequences, key_heads, tokens * shared, width),
        key_cache.reshape(blocks * size, key_heads * width),
        value_cache.reshape(blocks * size, key_heads * width),
        slots,
        seen,
        width**-0.5 if scale is None else float(scale),
    )
    out = out.unflatten(2, (tokens, shared)).transpose(1, 2)
    return out.reshape(query.shape)


def write_pages_nki(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Write keys and values of tokens into slots of a paged cache.

    Args:
        key: [tokens, key heads, width].
        value: Like `key`.
        key_cache: [blocks, block size, key heads, width], contiguous; written.
        value_cache: Like `key_cache`; written.
        slots: int32 [tokens]: block * block size + place in the block, of each token.
    """
    rows = (key.shape[0], key_cache.shape[2] * key_cache.shape[3])
    views = [cache.view(-1, rows[1]) for cache in (key_cache, value_cache)]
    _write(key.reshape(rows), value.reshape(rows), views[0], views[1], slots)


@nki_op("torch_neuronx_kernels::paged_attention_nki", mutates_args=())
def _attention(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor, scale: float
) -> Tensor:
    out: Tensor = paged_forward(query, keys, values, slots, positions, scale)
    return out


@nki_op("torch_neuronx_kernels::write_pages_nki", mutates_args=("key_cache", "value_cache"))
def _write(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    paged_write(key, value, key_cache, value_cache, slots)


@nki.jit
def paged_forward(
    query: Any, key_cache: Any, value_cache: Any, slots: Any, positions: Any, scale: float
) -> Any:
    """Attention of the rows of each sequence over the rows of the cache that its slots name.

    Args:
        query: [sequences, key heads, rows, width]; a row is a token and one of the heads that
            share a key head.
        key_cache: [rows of the cache, key heads * width].
        value_cache: Like `key_cache`.
        slots: int32 [sequences, keys].
        positions: float32 [sequences, rows]: the last key that a row sees.
        scale: What products of queries and keys are multiplied by.

    Returns:
        Like `query`.
    """
    sequences, key_heads, rows, width = query.shape
    out = nl.ndarray(query.shape, dtype=query.dtype, buffer=nl.shared_hbm)
    for s in nl.affine_range(sequences):
        for start, end in spans(rows):
            seen = _column(positions[s, start:end])
            turned = [transposed(load(query[s, g, start:end])) for g in range(key_heads)]
            kept = [softmax_state(end - start, width) for _ in range(key_heads)]
            for first, last in spans(slots.shape[1]):
                chosen = _column(slots[s, first:last])
                keys, values = (_gathered(c, chosen) for c in (key_cache, value_cache))
                hidden = _hidden(seen, first, last)
                for g in range(key_heads):
                    columns = slice(g * width, (g + 1) * width)
                    product = nl.ndarray((end - start, last - first), nl.float32, nl.psum)
                    nisa.nc_matmul(
                        dst=product, stationary=turned[g], moving=transposed(keys[:, columns])
                    )
                    scores = nl.ndarray(product.shape, nl.float32, nl.sbuf)
                    nisa.tensor_tensor(dst=scores, data1=product, data2=hidden, op=nl.add)
                    add_keys(kept[g], scores, [values[:, columns]], scale, first=first == 0)
            for g in range(key_heads):
                store_average(out[s, g, start:end], kept[g][0], kept[g][1])
    return out


@nki.jit
def paged_write(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any) -> None:
    """Write rows [tokens, key heads * width] into the rows of the caches that the slots name."""
    tokens, width = key.shape
    for start, end in spans(tokens):
        chosen = _column(slots[start:end])
        for rows, cache in ((key, key_cache), (value, value_cache)):
            target = cache.ap([[width, end - start], [1, width]], vector_offset=chosen)
            nisa.dma_copy(dst=target, src=load(rows[start:end]))


def _column(vector: Any) -> Any:
    """Return a vector [n] of HBM as a tile [n, 1]."""
    tile = nl.ndarray((vector.shape[0], 1), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.ap([[1, vector.shape[0]], [1, 1]]))
    return tile


def _gathered(cache: Any, chosen: Any) -> Any:
    """Return the rows of a cache that a column names, as a tile."""
    rows, width = chosen.shape[0], cache.shape[1]
    tile = nl.ndarray((rows, width), dtype=cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=cache.ap([[width, rows], [1, width]], vector_offset=chosen))
    return tile


def _hidden(seen: Any, first: int, last: int) -> Any:
    """Return [rows, keys] with 0 where a row sees a key, and what hides it elsewhere."""
    shape = (seen.shape[0], last - first)
    place = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=place, pattern=[[1, shape[1]]], offset=first, channel_multiplier=0)
    nisa.tensor_scalar(
        dst=place, data=place, op0=nl.greater, operand0=seen, op1=nl.multiply, operand1=HIDDEN
    )
    return place
