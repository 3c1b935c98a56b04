"""A step on the model: tokens of several requests in one row, attention over their pages.

Models of transformers ask `AttentionInterface` for the function that their configuration names. The
one of here, `ATTENTION`, writes the keys and values of the step's tokens into the paged cache and
reads those of each token's sequence from it. transformers makes no masks for a function that it has
no mask function for, and passes further arguments of the model through: that is how the pages
arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from torch_neuronx.kernels import paged_attention, write_pages
from torch_neuronx.serving.decoding import CompiledSteps, Row
from torch_neuronx.serving.scheduler import Part

__all__ = ["ATTENTION", "Pages", "Runner"]

ATTENTION = "torch_neuronx_paged"


@dataclass
class Pages:
    """Where the tokens of a step are, and where the keys that they see are.

    Attributes:
        caches: Keys and values of each layer, each [blocks, block size, key heads, width].
        slots: int64 [tokens]: where each token's keys and values go.
        table: int32 [sequences, blocks]: the blocks of each sequence.
        lengths: int32 [sequences]: keys of each sequence after this step.
        starts: int32 [sequences + 1]: where each sequence's tokens are in the row.
    """

    caches: list[tuple[Tensor, Tensor]]
    slots: Tensor
    table: Tensor
    lengths: Tensor
    starts: Tensor


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    pages: Pages | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a row of tokens, [1, heads, tokens, width], as transformers calls it."""
    if pages is None:
        raise ValueError(
            f"attention {ATTENTION!r} is for the engine of torch_neuronx.serving, which gives the "
            "pages; set another by model.set_attn_implementation('sdpa')"
        )
    changed = {name: others.get(name) for name in ("sliding_window", "softcap", "s_aux")}
    extras = [name for name, given in changed.items() if given is not None]
    if attention_mask is not None or dropout or extras:
        raise ValueError(f"paged attention has no mask and no dropout, nor {extras or 'bias'}")
    keys, values = pages.caches[module.layer_idx]
    write_pages(key[0].transpose(0, 1), value[0].transpose(0, 1), keys, values, pages.slots)
    out = paged_attention(
        query[0].transpose(0, 1), keys, values, pages.table, pages.lengths, pages.starts,
        scale=scaling,
    )  # fmt: skip
    return out[None], None


AttentionInterface.register(ATTENTION, _attention)


class Runner:
    """A model and its paged cache.

    Attributes:
        model: The caller's, whose attention is `ATTENTION` until `close`.
        caches: As in `Pages`. The last block belongs to nobody: tokens that fill up a row go there.
    """

    def __init__(
        self, model: PreTrainedModel, blocks: int, size: int, *, compiled: tuple[int, int] | None
    ) -> None:
        """Allocate the cache on the model's device and put the attention into the model.

        Args:
            model: A causal language model of transformers with attention over all earlier tokens.
            blocks: Of the cache.
            size: Tokens of a block.
            compiled: Requests at most and tokens of the longest one, if steps of one token a
                request are to be compiled.

        Raises:
            ValueError: The model cannot be served, or not be compiled.
        """
        config = model.config.get_text_config()
        _check(model, config)
        self.model = model
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        shape = (blocks + 1, size, heads, width)
        self.caches = [
            (
                torch.zeros(shape, dtype=model.dtype, device=model.device),
                torch.zeros(shape, dtype=model.dtype, device=model.device),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self._size = size
        self._compiled: CompiledSteps | None = None
        if compiled is not None:
            requests, longest = compiled
            self._compiled = CompiledSteps(
                self._decode,
                requests=requests,
                columns=-(-longest // size),
                nobody=Row(0, 0, blocks * size, (blocks,)),
                device=model.device,
            )
        self._before = config._attn_implementation  # noqa: SLF001 - has no public reader
        model.set_attn_implementation(ATTENTION)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.caches)

    def close(self) -> None:
        """Give the model its attention back, and free the cache."""
        self.model.set_attn_implementation(self._before)
        self.caches = []
        self._compiled = None

    @property
    def sizes(self) -> list[int]:
        """Numbers of requests that steps are compiled for."""
        return self._compiled.sizes if self._compiled is not None else []

    @torch.inference_mode()
    def compile(self, size: int) -> None:
        """Compile the step of `size` requests, by running it on nobody's tokens."""
        assert self._compiled is not None
        self._compiled.run([self._compiled.nobody] * size).cpu()

    @torch.inference_mode()
    def run(self, parts: Sequence[Part]) -> Tensor:
        """Compute the parts' keys and values.

        Returns:
            Float [parts that are last, vocabulary] on the model's device: what follows them.
        """
        if self._compiled is not None and all(part.count == 1 for part in parts):
            logits = self._compiled.run([self._row(part) for part in parts])
            last = [i for i, part in enumerate(parts) if part.last]
            return logits if len(last) == len(parts) else logits[last]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, ends = [0], []
        for part in parts:
            request = part.request
            first, end = request.computed, request.computed + part.count
            tokens += request.span(first, end)
            positions += range(first, end)
            slots += [self._slot(request.blocks, i) for i in range(first, end)]
            starts.append(len(tokens))
            if part.last:
                ends.append(len(tokens) - 1)
        most = max(len(part.request.blocks) for part in parts)
        table = [part.request.blocks + [0] * (most - len(part.request.blocks)) for part in parts]
        device = self.model.device
        pages = Pages(
            self.caches,
            torch.tensor(slots).to(device),
            torch.tensor(table, dtype=torch.int32).to(device),
            torch.tensor([p.request.computed + p.count for p in parts], dtype=torch.int32).to(
                device
            ),
            torch.tensor(starts, dtype=torch.int32).to(device),
        )
        out: Tensor = self.model(
            input_ids=torch.tensor([tokens]).to(device),
            position_ids=torch.tensor([positions]).to(device),
            use_cache=False,
            logits_to_keep=torch.tensor(ends, dtype=torch.int64).to(device),
            pages=pages,
        ).logits[0]
        return out

    def _slot(self, blocks: Sequence[int], position: int) -> int:
        """Where in the cache the keys of a sequence's token go."""
        return blocks[position // self._size] * self._size + position % self._size

    def _row(self, part: Part) -> Row:
        request, at = part.request, part.request.computed
        blocks = request.blocks
        return Row(request.span(at, at + 1)[0], at, self._slot(blocks, at), blocks)

    def _decode(self, words: Tensor, table: Tensor, starts: Tensor) -> Tensor:
        """What is compiled; see `CompiledSteps`."""
        tokens, positions, slots = words
        pages = Pages(self.caches, slots, table[:, 1:].contiguous(), table[:, 0], starts)
        logits: Tensor = self.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, pages=pages
        ).logits[0]
        return logits


def _check(model: PreTrainedModel, config: Any) -> None:
    """Refuse what would give other results than `generate`."""
    name = type(model).__name__
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"{name} does not take its attention from transformers' AttentionInterface"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        raise ValueError(
            f"{name} has layers with {', '.join(sorted(kinds))} and sliding_window="
            f"{getattr(config, 'sliding_window', None)}; the paged cache is for full attention"
        )
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder and a decoder; the engine serves decoders")
