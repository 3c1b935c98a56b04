"""Compile all-MiniLM-L6-v2 ahead of time, save it, load it, and serve batches on several cores.

python -m examples.traced_minilm
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

from examples.minilm import SENTENCES, model_folder

# isort: split
import torch
from transformers import AutoModel, AutoTokenizer

import torch_neuronx

LENGTH = 32  # tokens; a traced model has one shape


def main() -> None:
    # PyTorch says with every use that TorchScript is deprecated.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    model = AutoModel.from_pretrained(model_folder()).eval()

    def tokens(sentences: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return dict(
            tokenizer(
                list(sentences),
                padding="max_length",
                truncation=True,
                max_length=LENGTH,
                return_tensors="pt",
            )
        )

    start = time.perf_counter()
    traced = torch_neuronx.trace(model, tokens(SENTENCES[:1]))
    print(f"  traced in {time.perf_counter() - start:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm.pt"
        torch.jit.save(traced, path)
        start = time.perf_counter()
        loaded = torch.jit.load(path)
        print(f"  loaded {path.stat().st_size >> 20} MiB in {time.perf_counter() - start:.2f} s")
    server = torch_neuronx.DataParallel(loaded, device_ids=[0, 1])
    batch = tokens(SENTENCES)
    server(**batch)  # the first call of a core rearranges the weights for its products
    start = time.perf_counter()
    hidden = server(**batch)["last_hidden_state"]
    print(f"  {len(SENTENCES)} sentences in {1000 * (time.perf_counter() - start):.1f} ms")
    with torch.no_grad():
        difference = (hidden - model(**batch).last_hidden_state).abs().max().item()
    print(f"  largest difference from the module on the CPU: {difference:.1e}")


if __name__ == "__main__":
    main()
