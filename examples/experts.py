"""Mixture of experts: one expert per core, and words travel to the one that is chosen for them.

torchrun --nproc-per-node 2 -m examples.experts
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional_collectives


class Experts(nn.Module):
    """Words [n, width] through the expert that the router prefers, of which each rank has one."""

    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        torch.manual_seed(0)  # the router is the same everywhere
        self.router = nn.Linear(width, ranks, device="neuron")
        torch.manual_seed(1 + dist.get_rank())  # an expert isn't
        layers = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.expert = nn.Sequential(*layers).to("neuron")

    def forward(self, words: Tensor) -> Tensor:
        weight, expert = self.router(words).softmax(1).max(1)
        order = expert.argsort(stable=True)
        leaving = expert.bincount(minlength=self.router.out_features)
        coming = torch.empty_like(leaving)
        dist.all_to_all_single(coming, leaving)
        into, out = coming.tolist(), leaving.tolist()  # uneven, and some may be 0
        group = dist.group.WORLD
        assert group is not None
        exchange = functional_collectives.all_to_all_single_autograd
        here = exchange(words[order], into, out, group)
        back = exchange(self.expert(here), out, into, group)
        y: Tensor = torch.empty_like(back).index_copy(0, order, back) * weight[:, None]
        return y


def main() -> float:
    """Train; the last loss, as a share of the first."""
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = Experts(32, ranks)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    words = torch.randn(256, 32, device="neuron")
    losses: list[float] = []
    for step in range(40):
        loss = (layer(words) - words.sin()).square().mean()
        loss.backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.grad /= ranks  # an expert has the gradients of all ranks' words already
        for parameter in layer.router.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {losses[-1]:.4f}")
    dist.destroy_process_group()
    return losses[-1] / losses[0]


if __name__ == "__main__":
    main()
