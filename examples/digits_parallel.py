"""The classifier of examples/digits_vit.py on several NeuronCores: the same losses as on one.

    torchrun --nproc-per-node 2 -m examples.digits_parallel

Each rank takes its share of every batch. DDP keeps all parameters on each core and averages their
gradients; FSDP2 (`fully_shard`) divides parameters and the optimizer's state over the cores. Exit
code 1 when a loss differs from that of one core by more than float32 sums in another order explain.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from examples.digits_vit import BATCH, SEED, VisionTransformer, digits

STEPS = 20
# Losses are about 2 and known to 2e-7; twenty steps on sums that were rounded in another order may
# lose a digit or two of that.
LARGEST_DIFFERENCE = 1e-5
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """Mean losses of all ranks, step by step; seconds; bytes that stay on each core."""

    losses: list[float]
    seconds: float
    held: int


def whole(model: VisionTransformer) -> nn.Module:
    """One core, for comparison."""
    return model


def ddp(model: VisionTransformer) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp2(model: VisionTransformer) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def train(wrap: Callable[[VisionTransformer], nn.Module], rank: int, ranks: int) -> Run:
    """Train on this rank's share, `rank` of `ranks`, of every batch."""
    before = torch.accelerator.memory_allocated()
    torch.manual_seed(SEED)
    model = wrap(VisionTransformer().to("neuron"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = digits()[0].tensors
    losses = []
    start = time.perf_counter()
    for step in range(STEPS):
        share = slice(step * BATCH + rank, (step + 1) * BATCH, ranks)
        x, y = (part[share].to("neuron") for part in (images, labels))
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        if ranks > 1:
            dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    seconds = time.perf_counter() - start
    optimizer.zero_grad()
    return Run(losses, seconds, torch.accelerator.memory_allocated() - before)


def main() -> int:
    """What every rank does; rank 0 prints."""
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    runs = {
        "one core": train(whole, 0, 1),
        f"DDP, {ranks} cores": train(ddp, rank, ranks),
        f"FSDP2, {ranks} cores": train(fsdp2, rank, ranks),
    }
    dist.destroy_process_group()
    expected = runs["one core"].losses
    far = 0.0
    for name, run in runs.items():
        off = max(abs(a - b) for a, b in zip(run.losses, expected, strict=True))
        far = max(far, off)
        if rank == 0:
            print(
                f"  {name:<16} loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f} in {STEPS} steps, "
                f"off by {off:.0e}   {run.held / MIB:4.1f} MiB on each core   {run.seconds:5.2f} s",
                flush=True,
            )
    return 0 if far <= LARGEST_DIFFERENCE else 1


def launch(ranks: int = 2) -> list[str]:
    """Run this module by torchrun. Returns what went wrong, in words."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", "examples.digits_parallel"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if subprocess.run(command, env=environment, check=False).returncode != 0:  # noqa: S603 - ours
        return [f"training on {ranks} NeuronCores failed, or came to other losses than on one"]
    return []


if __name__ == "__main__":
    sys.exit(main())
