"""Small training programs that tests plan and really run; every rank calls one after joining."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

from torch_neuronx import neuron
from torch_neuronx.distributed.planning import collectives

LAYERS, WIDTH, HIDDEN, ROWS = 3, 96, 256, 24


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.up(x).relu())
        return result


LAYER_BYTES = 2 * WIDTH * HIDDEN * 4


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to("neuron")


def train(network: nn.Module, steps: int = 2) -> float:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, foreach=False)
    value = 0.0
    for _ in range(steps):
        loss = network(torch.ones(ROWS, WIDTH, device="neuron")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
    return value


def ddp() -> float:
    return train(nn.parallel.DistributedDataParallel(model()))


def fsdp() -> float:
    network = model()
    for layer in network:
        fully_shard(layer)
    fully_shard(network)
    return train(network)


def tensor_parallel() -> float:
    network = model()
    mesh = init_device_mesh("neuron", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for layer in network:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(network)


def hybrid(replicas: int) -> float:
    network = model()
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = init_device_mesh("neuron", shape, mesh_dim_names=("replicate", "shard"))
    for layer in network:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return train(network)


PROGRAMS = {"ddp": ddp, "fsdp": fsdp, "tensor_parallel": tensor_parallel}


def planned(name: str, *arguments: int) -> None:
    """A program as a script has it: with the group's start and end."""
    dist.init_process_group("neuron")
    {**PROGRAMS, "hybrid": hybrid}[name](*arguments)  # type: ignore[operator]
    dist.destroy_process_group()


class Recorder(TorchDispatchMode):
    """Notes the collectives of a real run: kind, bytes and group size, in order.

    It waits for every operator: how long the buffers of an exchange are in use, and with them the
    peak of memory, would otherwise depend on how fast the other ranks are.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        spec = collectives.SPECS.get(func)
        if spec is not None:
            names = [argument.name for argument in func._schema.arguments]
            arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
            given = collectives.tensors_in(arguments.get(spec.reads))
            received = collectives.tensors_in(arguments.get(spec.writes) if spec.writes else result)
            group = collectives.group_of(arguments)
            size = collectives.payload(spec, given, received, group.size())
            self.seen.append((spec.kind, size, group.size()))
        neuron.synchronize()
        return result


def really(rank: int, world_size: int) -> dict[str, tuple[list[tuple[str, int, int]], int]]:
    """Run every program in a real rank: its collectives, and the peak of its memory."""
    del rank, world_size
    found = {}
    for name, program in PROGRAMS.items():
        # What the program before left in cycles must not be freed during this one.
        gc.collect()
        neuron.synchronize()
        before = neuron.memory_allocated()
        neuron.reset_peak_memory_stats()
        with Recorder() as recorder:
            program()
        found[name] = (recorder.seen, neuron.max_memory_allocated() - before)
    return found
