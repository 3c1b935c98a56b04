"""A rank of test_namespaces.py: trains one model in several ways and compares with one process."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, BATCH, LENGTH, WIDTH = 4, 8, 12, 32


def model() -> nn.Module:
    """In float64, so that the order of sums hardly matters and bounds can be tight."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(2)
    ]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH)).double().to("neuron")


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    shape = (BATCH, LENGTH, WIDTH)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to("neuron"), torch.sin(3 * x).to("neuron")


def train(net: nn.Module, rank: int, n: int) -> list[float]:
    """Losses of the whole batch, of which this rank sees its part."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = (t.chunk(n)[rank] for t in batch(step))
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if n > 1:
            dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(float(total))
    return losses


def sharded(net: nn.Module, mesh: Any) -> nn.Module:
    for layer in net.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def compared(rank: int, n: int) -> None:
    """PyTorch's own comparison, whose gloo group has to find the way to the other host, too."""
    c10d.set_debug_level(c10d.DebugLevel.DETAIL)
    group = dist.new_group()
    c10d.set_debug_level(c10d.DebugLevel.OFF)
    total = torch.ones(4, device="neuron")
    dist.all_reduce(total, group=group)
    assert total.tolist() == [n] * 4
    with pytest.raises(RuntimeError, match="mismatch between collectives") as told:
        dist.all_reduce(total[: 4 if rank else 3], group=group)
    assert all(f"TensorShape=[{elements}]" in str(told.value) for elements in (3, 4))
    sys.stdout.write(f"rank {rank} was told of both\n")
    sys.stdout.flush()


def main() -> None:
    dist.init_process_group("neuron")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.accelerator.set_device_index(rank % 2)
    net = model()
    expected = train(copy.deepcopy(net), 0, 1)
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {
        "DDP": DistributedDataParallel,
        "FSDP2": lambda net: sharded(net, init_device_mesh("neuron", (n,))),
        # Sharded within a host, replicated between hosts.
        "HSDP": lambda net: sharded(
            net, init_device_mesh("neuron", (2, n // 2), mesh_dim_names=("replicate", "shard"))
        ),
    }
    assert expected[-1] < expected[0]
    for name, wrap in ways.items():
        losses = train(wrap(copy.deepcopy(net)), rank, n)
        # Some 1e4 additions at 1e-16, through 4 steps.
        torch.testing.assert_close(losses, expected, rtol=1e-10, atol=0)
        if rank == 0:
            sys.stdout.write(f"{name} trains like one process: {losses}\n")
            sys.stdout.flush()
    compared(rank, n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
