"""Tensor parallelism without waiting: products of shards instead of gathered words.

torchrun --nproc-per-node 2 -m examples.async_tensor_parallel

A feed-forward layer whose columns and rows are divided over the ranks, its words too. The plain way
gathers all words, multiplies, and adds the results up; the fused operators take the peers' words
from symmetric memory, shard by shard.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional_collectives
from torch.nn.functional import gelu

WIDTH, WORDS = 128, 64


def main() -> float:
    """The largest difference between the two ways."""
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    torch.manual_seed(rank)  # everybody has other words, columns and rows
    words = torch.randn(WORDS // ranks, WIDTH, device="neuron")
    up = torch.randn(WIDTH, 4 * WIDTH // ranks, device="neuron") / WIDTH**0.5
    down = torch.randn(4 * WIDTH // ranks, WIDTH, device="neuron") / WIDTH**0.5

    def plain() -> Tensor:
        everybodys = functional_collectives.all_gather_single(words, 0, group)
        partial = gelu(everybodys @ up) @ down
        mine: Tensor = functional_collectives.reduce_scatter_single(partial, "sum", 0, group)
        return mine

    def fused() -> Tensor:
        operators: Any = torch.ops.symm_mem
        _, (wide,) = operators.fused_all_gather_matmul(words, [up], 0, group.group_name)
        mine: Tensor = operators.fused_matmul_reduce_scatter(
            gelu(wide), down, "sum", 0, group.group_name
        )
        return mine

    difference = (plain() - fused()).abs().max().item()
    if rank == 0:
        print(f"{WORDS} words on {ranks} cores; the two ways differ by {difference:.1e}")
    dist.destroy_process_group()
    return difference


if __name__ == "__main__":
    main()
