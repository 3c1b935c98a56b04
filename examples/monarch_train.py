"""Monarch's actors on NeuronCores: a mesh of processes with a core each, trained as one job.

python -m examples.monarch_train
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Trainer(Actor):  # type: ignore[misc] # mypy does not look into Monarch
    """A rank: its model, on its core, kept between calls."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.rank = current_rank().rank
        torch.accelerator.set_device_index(self.rank)
        dist.init_process_group("neuron")
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Linear(8, 4).to("neuron"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    @endpoint  # type: ignore[untyped-decorator]
    def step(self, inputs: torch.Tensor) -> float:
        """One step on this rank's rows; returns the mean loss of all ranks."""
        part = inputs[self.rank :: dist.get_world_size()].to("neuron")
        loss = nn.functional.cross_entropy(self.model(part), part[:, :4].argmax(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return mean.item()

    @endpoint  # type: ignore[untyped-decorator]
    def weights(self) -> list[torch.Tensor]:
        """The parameters, on the host."""
        return [p.detach().cpu() for p in self.model.parameters()]

    @endpoint  # type: ignore[untyped-decorator]
    def leave(self) -> None:
        """End the process group."""
        dist.destroy_process_group()


def main(steps: int = 5) -> dict[str, Any]:
    """Train; returns the loss of every step and the weights of every rank."""
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    processes = this_host().spawn_procs(per_host={"cores": RANKS})
    setup_torch_elastic_env(processes)
    trainers = processes.spawn("trainers", Trainer)
    losses = []
    for step in range(steps):
        losses.append(next(iter(trainers.step.call(inputs).get().values())))
        print(f"step {step}: loss {losses[-1]:.4f}")
    weights = list(trainers.weights.call().get().values())
    trainers.leave.call().get()
    processes.stop().get()
    return {"losses": losses, "weights": weights}


if __name__ == "__main__":
    main()
