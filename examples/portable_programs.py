"""Compile once, train elsewhere: programs travel to another process as PyTorch's cache artifacts.

    python -m examples.portable_programs

A classifier of sentences looks words up in an EmbeddingBag with sparse gradients; its batches are
jagged nested tensors, one row per sentence, of as many words as it has. The first process compiles
and trains, and puts the programs into a file (`torch.compiler.save_cache_artifacts`). The second
starts with empty caches and that file: it has nothing to compile, and its losses are the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SENTENCES = {
    "the soup was warm and rich with herbs": 0,
    "bake the bread until the crust is brown": 0,
    "a pinch of salt": 0,
    "stir the sauce slowly while the onions fry in butter": 0,
    "the striker scored twice": 1,
    "they lost the final in the last minute of extra time": 1,
    "her serve won the match": 1,
    "the goalkeeper saved a late penalty": 1,
}
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
STEPS = 30


class Classifier(nn.Module):
    """The mean of a sentence's word vectors, and a line between the two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(len(WORDS), 16, mode="mean", sparse=True)
        self.kinds = nn.Linear(16, 2)

    def forward(self, sentences: Any) -> Tensor:
        """Score the kinds [sentences, 2] from a jagged [sentences, words] of word numbers."""
        found: Tensor = self.kinds(self.words(sentences.values(), sentences.offsets()[:-1]))
        return found


def train() -> list[float]:
    """Return the loss of every step, and print how long the first one took."""
    torch.manual_seed(0)
    rows = [torch.tensor([WORDS.index(w) for w in s.split()]) for s in SENTENCES]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged).to("neuron")
    kinds = torch.tensor(list(SENTENCES.values()), device="neuron")
    model = Classifier().to("neuron")
    optimizers: tuple[Any, ...] = (
        torch.optim.SparseAdam(model.words.parameters(), lr=0.02),
        torch.optim.AdamW(model.kinds.parameters(), lr=0.02),
    )

    @torch.compile(backend="neuron", fullgraph=True)
    def loss_of(batch: Any, kinds: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch), kinds)

    losses: list[float] = []
    start = time.perf_counter()
    for step in range(STEPS):
        loss = loss_of(batch, kinds)
        loss.backward()
        if step == 0:
            print(f"first loss and gradients after {time.perf_counter() - start:.2f} s", end=", ")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    return losses


def run() -> list[str]:
    """Train here and in a process that has nothing but the file. Returns what went wrong."""
    losses = train()
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    data, info = artifacts
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "programs"
        file.write_bytes(data)
        print(f"a file of {len(data) / 1024:.0f} KiB has {len(info.artifacts['neuron'])} programs")
        caches = {"TORCH_NEURONX_NEFF_CACHE_DIR": f"{folder}/neff", "XDG_CACHE_HOME": folder}
        command = [sys.executable, "-m", "examples.portable_programs", "--load", str(file)]
        second = subprocess.run(  # noqa: S603 - this file
            command,
            env={**os.environ, **caches},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    *said, theirs = second.stdout.splitlines()
    print("\n".join(said))
    if theirs != repr(losses):
        return ["a process with the compiled programs from a file has other losses"]
    print("the losses of both are the same, bit by bit")
    return []


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--load", type=Path, help="of the second process")
    file = options.parse_args().load
    if file is None:
        return len(run())
    torch.compiler.load_cache_artifacts(file.read_bytes())
    print(repr(train()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
