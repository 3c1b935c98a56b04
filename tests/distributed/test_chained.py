"""Collectives that callbacks issue and wait for, as hooks of DDP do, when one rank is always late.

The late rank makes the order certain that a busy machine makes now and then: the others' callbacks
run, issue further operators and collectives and wait for them while the collective before is still
open. Numbers are small integers, so results are exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import torch_neuronx
from tests.distributed.ranks import run_ranks

LATE = 0.03  # seconds
TURNS = 6
# Elements: one that travels in the slot of a rank, and one that is read where it is.
SIZES = (300, 40_000)


class Delay:
    """Has each rank come late in its turn, to every collective of that turn."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world, self.turn = rank, world, 0

    def __call__(self) -> None:
        if self.turn % self.world == self.rank:
            time.sleep(LATE)


def reduced(x: Tensor, late: Delay) -> Future[Any]:
    """An all_reduce under way."""
    late()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    future: Future[Any] = work.get_future()
    return future


def gathered(x: Tensor, late: Delay) -> Future[Any]:
    """All ranks' x, one after the other."""
    late()
    parts = torch.empty(dist.get_world_size() * x.numel(), device=x.device)
    work = dist.all_gather_into_tensor(parts, x, async_op=True)
    assert work is not None
    future: Future[Any] = work.get_future()
    return future


def chain(x: Tensor, late: Delay) -> Future[Tensor]:
    """From x of rank r, which is overwritten: 4 * world * (sum of all x) + 1, in x's own memory.

    Each step writes what the next one reads, waits for a collective of its own, and, as PowerSGD
    does, hands on a tensor that others look at through another name.
    """
    world = dist.get_world_size()
    total = x.clone()

    def twice(done: Future[Any]) -> Tensor:
        one: Tensor = done.value()[0]
        one.mul_(2)
        parts: Tensor = gathered(one, late).wait()[0]
        one.copy_(parts.view(world, -1).sum(0).div_(world))
        return one

    def again(done: Future[Tensor]) -> Tensor:
        total.copy_(done.value() + 0)
        both: Tensor = reduced(total, late).wait()[0]
        return both

    def ends(done: Future[Tensor]) -> Tensor:
        x.copy_(done.value()).mul_(2).add_(1)
        return x

    return reduced(total, late).then(twice).then(again).then(ends)


def expected(turn: int, world: int) -> float:
    return 4.0 * world * sum(turn + 3 * rank for rank in range(world)) + 1


def check(x: Tensor, turn: int, world: int) -> None:
    low, high = torch.aminmax(x)
    assert (low.item(), high.item()) == (expected(turn, world),) * 2, f"turn {turn}"


def begin(rank: int, world: int, mode: str) -> Delay:
    torch_neuronx.neuron.set_eager_mode(mode)
    if mode == "strict":
        torch_neuronx._C.set_direct_elements(0)
    return Delay(rank, world)


def fresh(elements: int, turn: int, rank: int) -> Tensor:
    return torch.full((elements,), float(turn + 3 * rank), device="neuron")


def in_this_thread(rank: int, world: int, mode: str) -> None:
    late = begin(rank, world, mode)
    for late.turn in range(TURNS):
        chains = [chain(fresh(size, late.turn, rank), late) for size in SIZES]
        # Memory that a chain has let go may be another's at once.
        for future in chains:
            check(future.wait(), late.turn, world)


def in_another_thread(rank: int, world: int, mode: str) -> None:
    """Issued by one thread, waited for by another, and used there."""
    late = begin(rank, world, mode)

    def look(chains: list[Future[Tensor]], turn: int) -> None:
        for future in chains:
            check(future.wait() + 0, turn, world)

    with ThreadPoolExecutor(1) as other:
        for late.turn in range(TURNS):
            chains = [chain(fresh(size, late.turn, rank), late) for size in SIZES]
            other.submit(look, chains, late.turn).result()


def on_a_stream(rank: int, world: int, mode: str) -> None:
    """Issued on a side stream; the default stream waits for it and looks."""
    late = begin(rank, world, mode)
    for late.turn in range(TURNS):
        stream = torch.Stream(device="neuron")
        with stream:
            futures = [chain(fresh(size, late.turn, rank), late) for size in SIZES]
            results = [future.wait() + 0 for future in futures]
        torch.accelerator.current_stream().wait_stream(stream)
        for x in results:
            check(x, late.turn, world)


def in_a_hook(rank: int, world: int, mode: str) -> None:
    """DDP calls the hook from autograd's thread, and copies what the future gives to gradients."""
    late = begin(rank, world, mode)
    model = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in SIZES).to("neuron")

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, factor: Tensor) -> Tensor:
            total: Tensor = sum((part * factor).sum() for part in self.parts)
            return total

    # Small buckets: several are under way.
    ddp = DistributedDataParallel(
        Sum(), device_ids=[torch.accelerator.current_device_index()], bucket_cap_mb=0.001
    )

    def hook(state: Delay, bucket: GradBucket) -> Future[Tensor]:
        return chain(bucket.buffer(), state)

    # DDP compares annotations with types; those of this file are text.
    hook.__annotations__ = {"bucket": GradBucket, "return": Future[Tensor]}
    ddp.register_comm_hook(late, hook)
    for late.turn in range(TURNS):
        ddp(torch.tensor(float(late.turn + 3 * rank), device="neuron")).backward()
        for part in model:
            assert part.grad is not None
            check(part.grad, late.turn, world)
        ddp.zero_grad(set_to_none=late.turn % 2 == 0)


@pytest.mark.parametrize("mode", ["debug", "strict"])
@pytest.mark.parametrize("where", [in_this_thread, in_another_thread, on_a_stream, in_a_hook])
@pytest.mark.parametrize("world", [2, 3])
def test_callbacks_wait_for_whoever_is_late(
    world: int, where: Callable[..., None], mode: str
) -> None:
    run_ranks(world, where, mode, timeout=100)
