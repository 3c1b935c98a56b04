"""The model that is served: sentences to unit vectors, in a trace of several buckets."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import torch_neuronx

LENGTHS = (16, 32, 64)  # tokens of a bucket; a longer text is refused
ROWS = 4  # sentences of a traced batch


class Embedding(torch.nn.Module):
    """Mean of an encoder's last hidden states over the real tokens, scaled to length one."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Vectors [rows, width] of tokens and their mask, int64[rows, length]."""
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def by_length(inputs: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The bucket for a batch: TorchScript, which is saved with the model."""
    length = inputs[0].size(1)
    number = 2
    if length <= 16:
        number = 0
    elif length <= 32:
        number = 1
    return inputs, torch.tensor(number)


def save(embedding: torch.nn.Module, path: Path) -> None:
    """Trace a module for every length, and save it as one model that takes any number of rows."""
    config = torch_neuronx.BucketModelConfig(lambda: torch.jit.script(by_length))
    examples = []
    for length in LENGTHS:
        ids = torch.ones(ROWS, length, dtype=torch.int64)
        examples.append((ids, ids))
    with warnings.catch_warnings():
        # PyTorch says with every use that TorchScript is deprecated.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        traced = torch_neuronx.bucket_model_trace(lambda: (embedding, {}), examples, config)
        # A server loads it on several cores at once, so one core first would be one too many.
        torch_neuronx.lazy_load(traced)
        torch.jit.save(traced, path)


class TooLongError(ValueError):
    """A text has more tokens than the longest bucket."""


class Embedder:
    """A saved trace on several cores. Threads may call it at the same time."""

    def __init__(self, path: Path, tokenizer: Any, cores: int) -> None:
        """Load a model.

        Args:
            path: What `save` wrote.
            tokenizer: Of transformers.
            cores: How many replicas, on cores 0, 1 and so on; calls take them in turn.
        """
        with warnings.catch_warnings(), torch_neuronx.neuron_cores_context(0, cores):
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            self.model = torch.jit.load(path)
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # a tokenizer is for one thread at a time
        for length in LENGTHS:  # the first call of every bucket and core arranges the weights
            for _ in range(cores):
                self([[1] * length])

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text.

        Raises:
            TooLongError: There are too many.
        """
        with self._lock:
            found: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        if len(found) > LENGTHS[-1]:
            raise TooLongError(f"the text has {len(found)} tokens; the limit is {LENGTHS[-1]}")
        return found

    @staticmethod
    def bucket(tokens: Sequence[int]) -> int:
        """The length that a text is padded to; texts of one bucket make good batches."""
        return next(length for length in LENGTHS if len(tokens) <= length)

    def __call__(self, batch: Sequence[Sequence[int]]) -> list[list[float]]:
        """Vectors of at most ROWS texts, each given as tokens."""
        length = max(map(self.bucket, batch))
        ids = torch.zeros(ROWS, length, dtype=torch.int64)
        mask = torch.zeros(ROWS, length, dtype=torch.int64)
        mask[len(batch) :, 0] = 1  # rows without a text need a token, or their mean is 0 / 0
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        vectors: list[list[float]] = self.model(ids, mask)[: len(batch)].tolist()
        return vectors
