"""Train a small network on digits, whose graphs are compiled before the run.

neuron_parallel_compile python -m examples.compile_ahead --steps 1
python -m examples.compile_ahead
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=60)
    steps = options.parse_args().steps
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).div(16).to("neuron")
    labels = torch.tensor(digits.target).to("neuron")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled = torch.compile(model, backend="neuron")

    start = time.perf_counter()
    for step in range(steps):
        loss = functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            print(f"the first step took {time.perf_counter() - start:.2f} s")
    if os.environ.get("NEURON_EXTRACT_GRAPHS_ONLY"):
        print("a trial run: nothing was computed in graphs")
    else:
        right = (compiled(images).argmax(1) == labels).float().mean().item()
        print(f"after {steps} steps {right:.1%} of the digits are right")


if __name__ == "__main__":
    main()
