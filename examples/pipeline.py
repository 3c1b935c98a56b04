"""Pipeline parallelism: each rank has some of the layers, micro-batches pass through them (1F1B).

torchrun --nproc-per-node 2 -m examples.pipeline
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> float:
    """Train; the last loss, on the last rank (others: infinity)."""
    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    index = torch.neuron.current_device()  # type: ignore[attr-defined] # added by torch_neuronx
    device = torch.device("neuron", index)
    torch.manual_seed(rank)
    last = rank == world - 1
    part = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8 if last else 32))
    stage = PipelineStage(part.to(device), rank, world, device)
    schedule = Schedule1F1B(stage, 2 * world, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(9)).to(device)
    targets = inputs[:, :8].argmax(1)
    loss = float("inf")
    for step in range(20):
        losses: list[Tensor] = []
        arguments = (inputs,) if rank == 0 else ()
        wanted: dict[str, Any] = {"target": targets, "losses": losses} if last else {}
        schedule.step(*arguments, **wanted)
        optimizer.step()
        optimizer.zero_grad()
        if last:
            loss = torch.stack(losses).mean().item()
            if step % 5 == 4:
                print(f"step {step + 1}: loss {loss:.4f}")
    dist.destroy_process_group()
    return loss


if __name__ == "__main__":
    main()
