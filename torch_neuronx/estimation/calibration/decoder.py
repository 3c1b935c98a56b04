"""A decoder like Llama's as one rank of a tensor-parallel job has it.

Every rank has its heads and its part of the inner columns; sums over ranks are all-reduces, two in
a layer. The cache of keys and values has a fixed length, and attention looks at all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["SIZES", "Decoder", "Size"]


@dataclass(frozen=True)
class Size:
    """Widths of a model.

    Attributes:
        layers: how many.
        width: of the stream between them.
        heads: of queries.
        key_heads: of keys and values.
        hidden: inner columns of the feed-forward part.
        vocabulary: tokens.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int

    @property
    def head(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


#: From the models' published configurations.
SIZES = {
    "llama-2-7b": Size(32, 4096, 32, 32, 11008, 32000),
    "llama-2-13b": Size(40, 5120, 40, 40, 13824, 32000),
    "llama-2-70b": Size(80, 8192, 64, 8, 28672, 32000),
    "llama-3-8b": Size(32, 4096, 32, 8, 14336, 128256),
    "llama-3.1-8b": Size(32, 4096, 32, 8, 14336, 128256),
    "llama-3.3-70b": Size(80, 8192, 64, 8, 28672, 128256),
}


class _Linear(nn.Module):
    """A product with a weight in bfloat16, or in int8 with a factor for each column."""

    def __init__(self, inputs: int, outputs: int, weights: torch.dtype) -> None:
        super().__init__()
        kept = torch.empty(outputs, inputs, dtype=weights, device="neuron")
        self.weight = nn.Parameter(kept, requires_grad=False)
        self.factor = None
        if weights is torch.int8:
            factor = torch.empty(outputs, dtype=torch.bfloat16, device="neuron")
            self.factor = nn.Parameter(factor, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.to(x.dtype))
        return y if self.factor is None else y * self.factor


class _Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        kept = torch.empty(width, dtype=torch.bfloat16, device="neuron")
        self.weight = nn.Parameter(kept, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Attention(nn.Module):
    """This rank's heads."""

    def __init__(
        self, size: Size, ranks: int, batch: int, cache: int, weights: torch.dtype
    ) -> None:
        super().__init__()
        # Heads that do not divide evenly are padded, and those of keys repeated.
        self.heads, self.key_heads = -(-size.heads // ranks), -(-size.key_heads // ranks)
        self.each = size.head
        columns = (self.heads + 2 * self.key_heads) * self.each
        self.qkv = _Linear(size.width, columns, weights)
        self.o = _Linear(self.heads * self.each, size.width, weights)
        shape = (batch, self.key_heads, cache, self.each)
        self.register_buffer("keys", torch.empty(shape, dtype=torch.bfloat16, device="neuron"))
        self.register_buffer("values", torch.empty(shape, dtype=torch.bfloat16, device="neuron"))

    keys: Tensor
    values: Tensor

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, places: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.each)).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.key_heads, self.key_heads), dim=1)
        q, k = _rotated(q, cosine, sine), _rotated(k, cosine, sine)
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        if x.shape[1] > 1:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            seen = torch.arange(self.keys.shape[2], device=x.device) <= places
            out = F.scaled_dot_product_attention(
                q, self.keys, self.values, attn_mask=seen[None, None, None], enable_gqa=True
            )
        result: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return result


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class FeedForward(nn.Module):
    """This rank's inner columns, SwiGLU."""

    def __init__(self, size: Size, ranks: int, weights: torch.dtype) -> None:
        super().__init__()
        self.gate = _Linear(size.width, size.hidden // ranks, weights)
        self.up = _Linear(size.width, size.hidden // ranks, weights)
        self.down = _Linear(size.hidden // ranks, size.width, weights)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """One layer."""

    def __init__(
        self, size: Size, ranks: int, batch: int, cache: int, weights: torch.dtype
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = _Norm(size.width), _Norm(size.width)
        self.attention = Attention(size, ranks, batch, cache, weights)
        self.feed_forward = FeedForward(size, ranks, weights)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, places: Tensor) -> Tensor:
        x = x + _summed(self.attention(self.norm1(x), cosine, sine, places))
        return x + _summed(self.feed_forward(self.norm2(x)))


def _summed(x: Tensor) -> Tensor:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(x)
    return x


class Decoder(nn.Module):
    """One rank of a model.

    Args:
        size: its widths.
        ranks: of the job.
        batch: sequences.
        cache: tokens of a sequence that are kept.
        weights: bfloat16 or int8.
    """

    def __init__(
        self,
        size: Size,
        ranks: int = 1,
        batch: int = 1,
        cache: int = 4096,
        weights: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        self.size = size
        kept = torch.empty(size.vocabulary, size.width, dtype=torch.bfloat16, device="neuron")
        self.embedding = nn.Parameter(kept, requires_grad=False)
        self.blocks = nn.ModuleList(
            Block(size, ranks, batch, cache, weights) for _ in range(size.layers)
        )
        self.norm = _Norm(size.width)
        self.output = _Linear(size.width, -(-size.vocabulary // ranks), torch.bfloat16)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return this rank's part of the next token's logits.

        Args:
            tokens: [batch, length].
            places: [length], where they are in the sequence.
        """
        each = self.size.head
        rates = 500000.0 ** (-torch.arange(0, each, 2, device=tokens.device) / each)
        angles = torch.outer(places.float(), rates)
        cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()
        x = F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, cosine, sine, places)
        result: Tensor = self.output(self.norm(x[:, -1:]))
        return result
