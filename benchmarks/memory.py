"""What a long training run does to the device's memory: overhead, and whether all comes back.

    python -m benchmarks.memory      # prints one JSON object

Runs in a process of its own, so that what it finds is its own doing.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

from benchmarks import models

STEPS = 1000
LARGEST_OVERHEAD = 1.3


@dataclass(frozen=True)
class Memory:
    """Bytes on the device: during `steps` training steps, and after everything was deleted."""

    steps: int
    peak_allocated: int
    reserved: int
    allocated_after_del: int
    reserved_after_empty_cache: int

    @property
    def overhead(self) -> float:
        """Reserved memory after the last step as a multiple of the most ever allocated."""
        return self.reserved / self.peak_allocated

    @property
    def met(self) -> bool:
        everything_back = self.allocated_after_del == self.reserved_after_empty_cache == 0
        return self.overhead <= LARGEST_OVERHEAD and everything_back


def train(device: torch.device, steps: int) -> None:
    """A small transformer on batches of changing length, which is what fragments a heap.

    Large enough (some 100 MiB) that the arena's unit of 2 MiB isn't what is measured.
    """
    torch.manual_seed(0)
    model = models.Transformer(width=128, depth=4, heads=4, tokens=128).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        tokens = 33 + step * 37 % 96
        ids = torch.randint(256, (16, tokens + 1)).to(device)
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def observe(steps: int) -> Memory:
    """Train, let go of everything, and read the device's own statistics in between."""
    train(torch.device("neuron"), steps)
    peak, reserved = torch.accelerator.max_memory_allocated(), torch.accelerator.memory_reserved()
    gc.collect()
    allocated = torch.accelerator.memory_allocated()
    torch.accelerator.empty_cache()
    return Memory(steps, peak, reserved, allocated, torch.accelerator.memory_reserved())


def observe_in_new_process(steps: int = STEPS) -> Memory:
    """`observe` in a fresh interpreter. Raises CalledProcessError when that fails."""
    command = [sys.executable, "-m", "benchmarks.memory", "--steps", str(steps)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=root
    )
    return Memory(**json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory held by a long training run, as JSON.")
    parser.add_argument("--steps", type=int, default=STEPS)
    print(json.dumps(asdict(observe(parser.parse_args().steps))))


if __name__ == "__main__":
    main()
