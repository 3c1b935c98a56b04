"""Train a tiny model on more ranks than the computer has cores, and say where the time went.

    torchrun --nproc-per-node 64 -m examples.many_ranks

Rank 0 prints for each phase when the first rank began it and the last one ended it, counted from
the start of the first process, and the memory that all processes hold together.
"""

# ruff: noqa: E402 - when PyTorch is imported is part of what is measured
import os
import re
import time
from pathlib import Path

_STARTED = time.time()


def _process_start() -> float:
    """Return when this process was made, in seconds since the epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


_MADE = _process_start()

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_IMPORTED = time.time()
STEPS = 10


def held_memory() -> float:
    """Return the process's memory in MiB; pages are divided by the processes that share them."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def train() -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to("neuron")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(8, 16, generator=generator).to("neuron")
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def main() -> None:
    times = [_MADE, _STARTED, _IMPORTED]
    dist.init_process_group("neuron")
    times.append(time.time())
    dist.barrier()
    times.append(time.time())
    losses = train()
    times.append(time.time())
    memory = held_memory()
    # Seconds since the epoch need float64.
    mine = torch.tensor([*times, memory], dtype=torch.float64, device="neuron")
    every = torch.empty(dist.get_world_size(), len(mine), dtype=torch.float64, device="neuron")
    dist.all_gather_into_tensor(every, mine)
    if dist.get_rank() == 0:
        report(every.cpu(), losses)
    dist.destroy_process_group()


def report(every: torch.Tensor, losses: list[float]) -> None:
    since = every[:, :-1] - every[:, 0].min()
    print(f"{len(every)} ranks, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    phases = ("start of Python", "import torch", "init_process_group", "first barrier", "training")
    print(f"{'phase':20}{'first began':>12}{'last ended':>12}{'mean':>8}  seconds")
    for index, phase in enumerate(phases):
        began, ended = since[:, index], since[:, index + 1]
        mean = (ended - began).mean().item()
        print(f"{phase:20}{began.min().item():12.2f}{ended.max().item():12.2f}{mean:8.2f}")
    memory = every[:, -1]
    print(f"memory: {memory.sum().item() / 1024:.2f} GiB, {memory.mean().item():.0f} MiB a rank")


if __name__ == "__main__":
    main()
