"""Words to their experts and back, through symmetric memory, as numbers on the device say.

torchrun --nproc-per-node 2 -m examples.expert_dispatch

Each rank has half of the experts, and every word goes to two of all. `all_to_all_vdev_2d` takes the
words from the order of ranks to that of experts, each expert's beginning at a multiple of 8, and
says where they are; `all_to_all_vdev_2d_offset` takes the results back by what it has said. One
rank that has all experts computes the same.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch import Tensor, nn

WIDTH, WORDS, EXPERTS, CHOSEN, ALIGN = 32, 64, 8, 2, 8
operators: Any = torch.ops.symm_mem


def expert(number: int) -> nn.Module:
    torch.manual_seed(1 + number)
    layers = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
    return nn.Sequential(*layers).to("neuron")


class Experts:
    """This rank's experts, and the memory through which words travel."""

    def __init__(self, group: str, ranks: int, rank: int) -> None:
        each = EXPERTS // ranks
        self.group = group
        self.experts = [expert(rank * each + number) for number in range(each)]
        # In the worst case all words of all ranks come here.
        most = ranks * WORDS * CHOSEN + each * ALIGN
        self.leaving, self.here, self.done = (
            symm_mem.empty((rows, WIDTH), device=torch.device("neuron"))
            for rows in (WORDS * CHOSEN, most, most)
        )
        self.where = torch.empty(2, EXPERTS, dtype=torch.int64, device="neuron")

    def __call__(self, words: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """What the experts make of words [n, width]; chosen and weights are [n, CHOSEN]."""
        order = chosen.flatten().argsort(stable=True)
        self.leaving.copy_(words[order // CHOSEN])
        splits = chosen.flatten().bincount(minlength=EXPERTS)
        operators.all_to_all_vdev_2d(self.leaving, self.here, splits, self.where, self.group, ALIGN)
        ranks = EXPERTS // len(self.experts)
        rows, begins = self.where.view(2, len(self.experts), ranks)
        counts = rows.sum(1).tolist()
        for module, begin, count in zip(self.experts, begins[:, 0].tolist(), counts, strict=True):
            mine = slice(begin, begin + count)
            self.done[mine] = module(self.here[mine])
        back, ignored = torch.empty_like(self.leaving), torch.empty_like(self.where)
        operators.all_to_all_vdev_2d_offset(self.done, back, self.where, ignored, self.group)
        results = torch.empty_like(back).index_copy(0, order, back)
        return (results.view(-1, CHOSEN, WIDTH) * weights[..., None]).sum(1)


@torch.no_grad()
def main() -> float:
    """The largest difference between the ranks together and one that has all experts."""
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    torch.manual_seed(0)  # the router is the same everywhere
    router = nn.Linear(WIDTH, EXPERTS, device="neuron")
    experts = Experts(group.group_name, ranks, rank)
    torch.manual_seed(100 + rank)
    words = torch.randn(WORDS, WIDTH, device="neuron")
    weights, chosen = router(words).softmax(1).topk(CHOSEN)
    together = experts(words, chosen, weights)

    alone = torch.zeros_like(together)
    for number in range(EXPERTS):
        share = (weights * (chosen == number)).sum(1, keepdim=True)
        alone += share * expert(number)(words)
    difference = (together - alone).abs().max().item()
    if rank == 0:
        print(f"{EXPERTS} experts on {ranks} cores; here came {experts.where[0].tolist()} words")
        print(f"one core with all experts differs by {difference:.1e}")
    dist.destroy_process_group()
    return difference


if __name__ == "__main__":
    main()
